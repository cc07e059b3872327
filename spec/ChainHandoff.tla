---------------------------- MODULE ChainHandoff ----------------------------
(* A payload is handed down a chain of three steps. A holder keeps it until DONE comes back from the root.
   Code: python/pandacore/patterns/chain.py. Invariants C1 to C4 of docs/protocols.md. *)
EXTENDS Integers, FiniteSets

CONSTANTS MaxCrash, MaxSuspect, MaxLoss, MaxGen,
          RootTimer,  \* TRUE: the root starts anew when nothing goes on
          Bug         \* "none", "no_generation_check", "forget_at_handon", "no_retransmission"

K == 3
Agents == {"a1", "b1", "a2", "b2", "a3"}
Pos(a) == CASE a \in {"a1", "b1"} -> 1 [] a \in {"a2", "b2"} -> 2 [] OTHER -> 3
Nodes == {"root"} \cup Agents
Place(n) == IF n = "root" THEN 0 ELSE Pos(n)
Holders(p) == {a \in Agents : Pos(a) = p}
None == "none"

(* A generation is <<counter, K - place of the issuer>>: larger is newer, the root wins ties. *)
Less(g, h) == g[1] < h[1] \/ (g[1] = h[1] /\ g[2] < h[2])
Max(g, h) == IF Less(g, h) THEN h ELSE g

VARIABLES alive, seen, gen, phase, succ, tried, kept, net, outcome, finals, budget
vars == <<alive, seen, gen, phase, succ, tried, kept, net, outcome, finals, budget>>

Init ==
  /\ alive = [n \in Nodes |-> TRUE]
  /\ seen = [n \in Nodes |-> IF n = "root" THEN <<1, K>> ELSE <<0, 0>>]
  /\ gen = seen                                       \* the generation of the payload held
  /\ phase = [n \in Nodes |-> IF n = "root" THEN "fin" ELSE "idle"]
  /\ succ = [n \in Nodes |-> None]
  /\ tried = [n \in Nodes |-> {}]
  /\ kept = [n \in Nodes |-> n = "root"]              \* whether the payload is still there
  /\ net = {}
  /\ outcome = "running"
  /\ finals = 0
  /\ budget = [crash |-> MaxCrash, suspect |-> MaxSuspect, loss |-> MaxLoss]

Hand(n, b) == <<"hand", gen[n], n, b>>
Heard(n, b) == alive[b] /\ ~Less(seen[b], gen[n])     \* b has this generation or a newer one

Forward(n) ==
  /\ outcome = "running" /\ alive[n] /\ phase[n] = "fin" /\ kept[n] /\ Place(n) < K /\ succ[n] = None
  /\ \E b \in Holders(Place(n) + 1) :
       /\ b \notin tried[n] \/ Holders(Place(n) + 1) \subseteq tried[n]
       /\ succ' = [succ EXCEPT ![n] = b]
       /\ tried' = [tried EXCEPT ![n] = @ \cup {b}]
       /\ net' = net \cup {Hand(n, b)}
  /\ UNCHANGED <<alive, seen, gen, phase, kept, outcome, finals, budget>>

HandAgain(n) ==
  /\ outcome = "running" /\ alive[n] /\ phase[n] = "fin" /\ succ[n] # None /\ kept[n]
  /\ Bug # "no_retransmission"
  /\ alive[succ[n]] /\ ~Heard(n, succ[n]) /\ Hand(n, succ[n]) \notin net
  /\ net' = net \cup {Hand(n, succ[n])}
  /\ UNCHANGED <<alive, seen, gen, phase, succ, tried, kept, outcome, finals, budget>>

Reissue(n) ==
  IF seen[n][1] + 1 > MaxGen
  THEN /\ net' = net \cup {<<"fail", gen[n], n, "root">>}
       /\ phase' = [phase EXCEPT ![n] = "failing"]
       /\ UNCHANGED <<seen, gen, succ>>
  ELSE /\ gen' = [gen EXCEPT ![n] = <<seen[n][1] + 1, K - Place(n)>>]
       /\ seen' = [seen EXCEPT ![n] = <<seen[n][1] + 1, K - Place(n)>>]
       /\ succ' = [succ EXCEPT ![n] = None]
       /\ UNCHANGED <<net, phase>>

Detect(n) ==
  /\ outcome = "running" /\ alive[n] /\ phase[n] = "fin" /\ kept[n] /\ succ[n] # None /\ ~alive[succ[n]]
  /\ Reissue(n)
  /\ UNCHANGED <<alive, tried, kept, outcome, finals, budget>>

Suspect(n) ==
  /\ outcome = "running" /\ alive[n] /\ phase[n] = "fin" /\ kept[n] /\ succ[n] # None /\ alive[succ[n]]
  /\ budget.suspect > 0
  /\ budget' = [budget EXCEPT !.suspect = @ - 1]
  /\ Reissue(n)
  /\ UNCHANGED <<alive, tried, kept, outcome, finals>>

FailAgain(n) ==
  /\ outcome = "running" /\ alive[n] /\ phase[n] = "failing" /\ <<"fail", gen[n], n, "root">> \notin net
  /\ Bug # "no_retransmission"
  /\ net' = net \cup {<<"fail", gen[n], n, "root">>}
  /\ UNCHANGED <<alive, seen, gen, phase, succ, tried, kept, outcome, finals, budget>>

Execute(a) ==
  /\ outcome = "running" /\ alive[a] /\ phase[a] = "run"
  /\ phase' = [phase EXCEPT ![a] = "fin"]
  /\ UNCHANGED <<alive, seen, gen, succ, tried, kept, net, outcome, finals, budget>>

Final(a) ==
  /\ outcome = "running" /\ alive[a] /\ phase[a] = "fin" /\ Pos(a) = K /\ kept[a]
  /\ <<"final", gen[a], a, "root">> \notin net
  /\ net' = net \cup {<<"final", gen[a], a, "root">>}
  /\ UNCHANGED <<alive, seen, gen, phase, succ, tried, kept, outcome, finals, budget>>

(* Nothing moves, and no timer of a holder will make it move. *)
Watched(n) == alive[n] /\ kept[n] /\ phase[n] = "fin" /\ Place(n) < K /\
                (succ[n] = None \/ ~alive[succ[n]] \/ ~Heard(n, succ[n]))
Quiet ==
  /\ net = {}
  /\ \A n \in Nodes : ~Watched(n)
  /\ \A a \in Agents : ~(alive[a] /\ (phase[a] \in {"run", "failing"} \/ (phase[a] = "fin" /\ Pos(a) = K /\ kept[a])))

Counters == {seen[n][1] : n \in Nodes}
Restart ==
  /\ outcome = "running" /\ RootTimer /\ Quiet
  /\ LET top == CHOOSE c \in Counters : \A d \in Counters : d <= c IN
     IF top + 1 > MaxGen
     THEN outcome' = "failed" /\ net' = {} /\ UNCHANGED <<seen, gen, succ, tried>>
     ELSE /\ seen' = [seen EXCEPT !["root"] = <<top + 1, K>>]
          /\ gen' = [gen EXCEPT !["root"] = <<top + 1, K>>]
          /\ succ' = [succ EXCEPT !["root"] = None]
          /\ tried' = [tried EXCEPT !["root"] = {}]
          /\ UNCHANGED <<outcome, net>>
  /\ UNCHANGED <<alive, phase, kept, finals, budget>>

Accept(g, from, b) ==
  /\ seen' = [seen EXCEPT ![b] = Max(seen[b], g)]
  /\ gen' = [gen EXCEPT ![b] = g]
  /\ phase' = [phase EXCEPT ![b] = "run"]
  /\ succ' = [succ EXCEPT ![b] = None]
  /\ tried' = [tried EXCEPT ![b] = {}]
  /\ kept' = [n \in Nodes |-> IF n = b THEN TRUE
                              ELSE IF n = from /\ n # "root" /\ Bug = "forget_at_handon" THEN FALSE
                              ELSE kept[n]]

Deliver(m) ==
  /\ m \in net
  /\ LET g == m[2] from == m[3] to == m[4] rest == net \ {m} IN
     CASE ~alive[to] ->
            net' = rest /\ UNCHANGED <<seen, gen, phase, succ, tried, kept, outcome, finals>>
       [] alive[to] /\ m[1] = "hand" ->
            /\ IF Less(seen[to], g) \/ (Bug = "no_generation_check" /\ g # seen[to])
               THEN Accept(g, from, to) ELSE UNCHANGED <<seen, gen, phase, succ, tried, kept>>
            /\ net' = IF Less(g, seen[to]) /\ from # "root" THEN rest \cup {<<"stale", seen[to], to, from>>}
                      ELSE rest
            /\ UNCHANGED <<outcome, finals>>
       [] alive[to] /\ m[1] = "stale" ->
            /\ net' = rest
            /\ phase' = IF Less(gen[to], g) /\ phase[to] = "fin" THEN [phase EXCEPT ![to] = "passive"] ELSE phase
            /\ seen' = [seen EXCEPT ![to] = Max(seen[to], g)]
            /\ UNCHANGED <<gen, succ, tried, kept, outcome, finals>>
       [] alive[to] /\ m[1] = "final" ->
            /\ net' = IF outcome = "running" THEN {} ELSE rest
            /\ finals' = finals + (IF outcome = "running" THEN 1 ELSE 0)
            /\ outcome' = IF outcome = "running" THEN "completed" ELSE outcome
            /\ UNCHANGED <<seen, gen, phase, succ, tried, kept>>
       [] alive[to] /\ m[1] = "fail" ->
            (* A newer generation counts more than this end. *)
            /\ LET newer == \E n \in Nodes : alive[n] /\ phase[n] \in {"run", "fin"} /\ kept[n] /\ Less(g, seen[n])
               IN /\ outcome' = IF newer THEN outcome ELSE "failed"
                  /\ net' = IF newer THEN rest ELSE {}
                  /\ phase' = IF from # "root" /\ phase[from] = "failing"
                              THEN [phase EXCEPT ![from] = "passive"] ELSE phase
            /\ UNCHANGED <<seen, gen, succ, tried, kept, finals>>
  /\ UNCHANGED <<alive, budget>>

Lose(m) ==
  /\ m \in net /\ budget.loss > 0
  /\ net' = net \ {m}
  /\ budget' = [budget EXCEPT !.loss = @ - 1]
  /\ UNCHANGED <<alive, seen, gen, phase, succ, tried, kept, outcome, finals>>

Crash(a) ==
  /\ outcome = "running" /\ alive[a] /\ budget.crash > 0
  /\ budget' = [budget EXCEPT !.crash = @ - 1]
  /\ alive' = [alive EXCEPT ![a] = FALSE]
  /\ UNCHANGED <<seen, gen, phase, succ, tried, kept, net, outcome, finals>>

Ended == outcome # "running" /\ UNCHANGED vars

Next ==
  \/ \E n \in Nodes : Forward(n) \/ HandAgain(n) \/ Detect(n) \/ FailAgain(n) \/ Suspect(n)
  \/ \E a \in Agents : Execute(a) \/ Final(a) \/ Crash(a)
  \/ Restart
  \/ \E m \in net : Deliver(m) \/ Lose(m)
  \/ Ended

(* Messages are too many to name one by one: any message in transit is delivered in the end if deliveries go
   on, since only finitely many can be put into the net per generation and generations are capped. *)
Fairness ==
  /\ \A n \in Nodes : /\ WF_vars(Forward(n)) /\ WF_vars(HandAgain(n))
                      /\ WF_vars(Detect(n)) /\ WF_vars(FailAgain(n))
  /\ \A a \in Agents : WF_vars(Execute(a)) /\ WF_vars(Final(a))
  /\ \A n \in Nodes : WF_vars(\E m \in net : m[4] = n /\ Deliver(m))
  /\ WF_vars(Restart)

Safety == Init /\ [][Next]_vars
Spec == Safety /\ Fairness

C1 == finals <= 1
C2 == [][\A n \in Nodes : ~Less(seen'[n], seen[n])]_vars
(* A step starts only under a generation that is newer than any its member knows. A run may become stale: what
   it hands on is then refused. *)
NoStaleStart == [][\A a \in Agents : (phase'[a] = "run" /\ gen'[a] # gen[a]) => Less(seen[a], gen'[a])]_vars
C4 == \A n \in Nodes : seen[n][1] <= MaxGen
Ends == <>(outcome # "running")
=============================================================================
