---------------------------- MODULE TeamMachine ----------------------------
(* The owner and the workers of one team, step by step as rust/matching/src/team_machine.rs takes them, in the
   surroundings of rust/matching/tests/team_machine.rs without failover. Both are exhausted with the same faults
   and must have the same number of states at the same depth: spec/team_machine.counts.
   An operator without a prime takes the owner's record `o` and gives the next one; `o.out` gathers what it sends. *)
EXTENDS Naturals, FiniteSets

CONSTANTS Count,              \* subtasks in use
          Known, Reachable,   \* agents that a match finds, and those that answer a solicitation
          MaxCrash, MaxSuspect, MaxLoss, MaxRepeat, MaxFaulty,
          Bug                 \* "none", "keep_assignment", "accept_faulty"

Agents == 0..3
Holds(a) == CASE a = 0 -> {0} [] a = 1 -> {1} [] a = 2 -> {0, 1} [] OTHER -> {1}
Reqs == 0..1
Subs == 0..(Count - 1)
Req(s) == IF s = 1 THEN 1 ELSE 0
After(s) == IF s = 0 THEN {} ELSE {0}
Nobody == 9
Not == <<9, 0>>               \* is not asked
Stays == <<9, "no">>          \* is not evicted
Solicitations == 1
Reservations == 2

VARIABLES o, workers, alive, net, left
vars == <<o, workers, alive, net, left>>

Min(S) == CHOOSE x \in S : \A y \in S : x <= y
Max(S) == CHOOSE x \in S : \A y \in S : x >= y

Active(s) == s.phase \in {"forming", "running"}
IsMember(s, a) == \E c \in Reqs : a \in s.pools[c]
Asking(s, c) == {a \in Agents : s.asked[a][1] = c}
Emit(s, messages) == [s EXCEPT !.out = @ \cup messages]
Release(a) == <<"release", 0, a>>

Short(s, c) ==
  LET have == Cardinality(s.pools[c]) + Cardinality(Asking(s, c))
      wanted == IF s.phase = "forming" \/ \E t \in Subs : Req(t) = c /\ s.done[t] = Nobody /\ s.asg[t] = Nobody
                THEN 1 ELSE 0
  IN IF wanted > have THEN wanted - have ELSE 0

(* ---- the owner's steps ---- *)
Ask(s, c, a) ==
  IF s.evicted[a][2] = "faulty" \/ IsMember(s, a) \/ s.asked[a] # Not \/ a \in s.refused \/ Short(s, c) = 0
  THEN s ELSE Emit([s EXCEPT !.asked[a] = <<c, 1>>], {<<"reserve", c, a>>})

RECURSIVE AskAll(_, _, _)
AskAll(s, c, some) ==
  IF some = {} THEN s ELSE AskAll(Ask(s, c, Min(some)), c, some \ {Min(some)})

End(s, phase) ==
  Emit([s EXCEPT !.phase = phase], {Release(a) : a \in {b \in Agents : IsMember(s, b) \/ s.asked[b] # Not}})

LookFurther(s, c) ==
  LET t == AskAll(s, c, {a \in Agents : s.evicted[a] = <<c, "revived">> /\ a \notin s.refused}) IN
  IF Short(t, c) = 0 THEN t
  ELSE IF t.rounds[c] < Solicitations
  THEN Emit([t EXCEPT !.rounds[c] = @ + 1, !.soliciting[c] = TRUE], {<<"solicit", c, 0>>})
  ELSE IF Asking(t, c) = {}
  THEN End(t, IF t.phase = "forming" THEN "unmatched" ELSE "noreplacement")
  ELSE t

(* `found`: per requirement an agent, or nobody. *)
Found(s, found) ==
  LET fit(c) == found[c] # Nobody /\ s.evicted[found[c]] = Stays
      asked0 == IF fit(0) THEN Ask([s EXCEPT !.matching = FALSE], 0, found[0]) ELSE [s EXCEPT !.matching = FALSE]
      asked1 == IF fit(1) THEN Ask(asked0, 1, found[1]) ELSE asked0
      further(t, c) == IF Active(t) /\ Short(t, c) > 0 /\ ~t.soliciting[c] THEN LookFurther(t, c) ELSE t
  IN further(further(asked1, 0), 1)

Accepted(s, a) ==
  IF s.asked[a] # Not
  THEN [s EXCEPT !.asked[a] = Not, !.pools[s.asked[a][1]] = @ \cup {a}, !.evicted[a] = Stays, !.view = @ + 1]
  ELSE IF IsMember(s, a) THEN s ELSE Emit(s, {Release(a)})

Offered(s, c, a) ==
  IF ~s.soliciting[c] THEN s
  ELSE LET t == Ask([s EXCEPT !.refused = @ \ {a}], c, a)
       IN IF Short(t, c) = 0 THEN [t EXCEPT !.soliciting[c] = FALSE] ELSE t

Evict(s, a, why) ==
  LET before == s.evicted[a]
      marked == IF before = Stays THEN s
                ELSE [s EXCEPT !.evicted[a][2] =
                        IF why = "faulty" THEN why ELSE IF @ = "revived" THEN "crash" ELSE @]
      free == [marked EXCEPT !.asked[a] = Not]
      pools == {c \in Reqs : a \in s.pools[c]}
      from == IF pools # {} THEN Min(pools) ELSE s.asked[a][1]
  IN IF from = Nobody THEN free
     ELSE Emit([free EXCEPT !.pools[from] = @ \ {a},
                            !.evicted[a] = IF @ = Stays THEN <<from, why>> ELSE <<from, @[2]>>,
                            !.asg = [t \in Subs |-> IF @[t] = a /\ Bug # "keep_assignment" THEN Nobody ELSE @[t]],
                            !.view = @ + 1],
               {Release(a)})

Revived(s, a) == IF s.evicted[a][2] = "crash" THEN [s EXCEPT !.evicted[a][2] = "revived"] ELSE s

Result(s, t, a) ==
  LET counts == s.done[t] = Nobody /\ a \in s.sent[t] /\ (s.evicted[a][2] # "faulty" \/ Bug = "accept_faulty")
  IN Emit(IF counts THEN [s EXCEPT !.done[t] = a, !.asg[t] = Nobody] ELSE s, {<<"ack", t, a>>})

Silent(s, a) ==
  IF s.asked[a] = Not THEN s
  ELSE IF s.asked[a][2] < Reservations
  THEN Emit([s EXCEPT !.asked[a][2] = @ + 1], {<<"reserve", s.asked[a][1], a>>})
  ELSE Emit([s EXCEPT !.asked[a] = Not, !.refused = @ \cup {a}], {Release(a)})

SolicitationOver(s, c) ==
  LET t == [s EXCEPT !.soliciting[c] = FALSE]
  IN IF s.soliciting[c] /\ Short(t, c) > 0 THEN LookFurther(t, c) ELSE t

DispatchAgain(s, t) == IF s.asg[t] = Nobody THEN s ELSE Emit(s, {<<"dispatch", t, s.asg[t]>>})

Formed(s) ==
  IF s.phase = "forming" /\ \A c \in Reqs : s.pools[c] # {}
  THEN Emit([s EXCEPT !.phase = "running", !.view = @ + 1, !.asked = [a \in Agents |-> Not],
                      !.soliciting = [c \in Reqs |-> FALSE]],
            {Release(a) : a \in {b \in Agents : s.asked[b] # Not}})
  ELSE s

Assign(s, t) ==
  LET pool == s.pools[Req(t)]
      busy(a) == Cardinality({u \in Subs : s.asg[u] = a})
      best == CHOOSE a \in pool : \A b \in pool : busy(a) < busy(b) \/ (busy(a) = busy(b) /\ a <= b)
  IN IF s.done[t] # Nobody \/ s.asg[t] # Nobody \/ pool = {} \/ \E d \in After(t) : s.done[d] = Nobody THEN s
     ELSE Emit([s EXCEPT !.asg[t] = best, !.sent[t] = @ \cup {best}], {<<"dispatch", t, best>>})

RECURSIVE AssignFrom(_, _)
AssignFrom(s, t) == IF t \in Subs THEN AssignFrom(Assign(s, t), t + 1) ELSE s

Match(s) ==
  LET lacks(c) == ~s.soliciting[c] /\ ~(s.rounds[c] >= Solicitations /\ Asking(s, c) # {}) /\ Short(s, c) > 0
  IN IF ~s.matching /\ \E c \in Reqs : lacks(c) THEN [s EXCEPT !.matching = TRUE] ELSE s

Advance(s) ==
  LET formed == Formed(s) IN
  IF ~Active(s) THEN s
  ELSE IF formed.phase = "forming" THEN Match(formed)
  ELSE IF \A t \in Subs : formed.done[t] # Nobody THEN End(formed, "completed")
  ELSE Match(AssignFrom(formed, 0))

(* What is sent travels; a solicitation is answered by whoever is alive, can, and is not a member. *)
Travelling(s, up) ==
  {m \in s.out : m[1] # "solicit"} \cup
  {m \in {"offer"} \X Reqs \X (Reachable \cap up) :
     <<"solicit", m[2], 0>> \in s.out /\ m[2] \in Holds(m[3]) /\ ~IsMember(s, m[3])}

Owner(s, messages) ==
  LET t == Advance(s) IN
  /\ o' = [t EXCEPT !.out = {}]
  /\ net' = messages \cup Travelling(t, alive)

(* ---- the whole ---- *)
Fresh == [held |-> FALSE, epoch |-> 0, subs |-> [t \in Subs |-> "no"]]
Begin == [phase |-> "forming", view |-> 0, pools |-> [c \in Reqs |-> {}], evicted |-> [a \in Agents |-> Stays],
          asg |-> [t \in Subs |-> Nobody], sent |-> [t \in Subs |-> {}], done |-> [t \in Subs |-> Nobody],
          asked |-> [a \in Agents |-> Not], refused |-> {}, matching |-> FALSE,
          rounds |-> [c \in Reqs |-> 0], soliciting |-> [c \in Reqs |-> FALSE], out |-> {}]

Init ==
  /\ o = [Advance(Begin) EXCEPT !.out = {}]
  /\ workers = [a \in Agents |-> Fresh]
  /\ alive = Agents
  /\ net = {}
  /\ left = [crash |-> MaxCrash, suspect |-> MaxSuspect, loss |-> MaxLoss, repeat |-> MaxRepeat,
             faulty |-> MaxFaulty]

Terminal == ~Active(o) /\ net = {} /\ \A a \in alive : ~workers[a].held

(* The receiver's step; `rest` is what travels on. *)
Receive(m, rest) ==
  LET t == m[2] a == m[3] worker == workers[a] IN
  CASE m[1] \in {"accept", "result", "offer"} ->
         /\ UNCHANGED workers
         /\ IF Active(o)
            THEN Owner(CASE m[1] = "accept" -> Accepted(o, a)
                         [] m[1] = "result" -> Result(o, t, a)
                         [] OTHER -> Offered(o, t, a), rest)
            ELSE /\ UNCHANGED o
                 /\ net' = rest \cup (CASE m[1] = "accept" -> {Release(a)}
                                        [] m[1] = "result" -> {<<"ack", t, a>>}
                                        [] OTHER -> {})
    [] OTHER ->
         /\ UNCHANGED o
         /\ IF a \notin alive THEN UNCHANGED workers /\ net' = rest
            ELSE CASE m[1] = "reserve" ->
                        /\ workers' = [workers EXCEPT ![a].held = TRUE, ![a].epoch = 1]
                        /\ net' = rest \cup {<<"accept", 0, a>>}
                   [] m[1] = "release" ->
                        /\ workers' = [workers EXCEPT ![a].held = FALSE, ![a].epoch = 1]
                        /\ net' = rest
                   [] m[1] = "dispatch" ->
                        /\ workers' = IF worker.subs[t] = "no"
                                      THEN [workers EXCEPT ![a].held = TRUE, ![a].epoch = 1,
                                                           ![a].subs[t] = "running"]
                                      ELSE [workers EXCEPT ![a].epoch = 1]
                        /\ net' = IF worker.subs[t] = "finished" THEN rest \cup {<<"result", t, a>>} ELSE rest
                   [] m[1] = "ack" ->
                        /\ workers' = IF worker.subs[t] = "finished"
                                      THEN [workers EXCEPT ![a].subs[t] = "stored"] ELSE workers
                        /\ net' = rest

Deliver(m) == m \in net /\ Receive(m, net \ {m}) /\ UNCHANGED <<alive, left>>

Lose(m) ==
  /\ m \in net /\ left.loss > 0
  /\ net' = net \ {m}
  /\ left' = [left EXCEPT !.loss = @ - 1]
  /\ UNCHANGED <<o, workers, alive>>

Repeat(m) ==
  /\ m \in net /\ left.repeat > 0
  /\ Receive(m, net)
  /\ left' = [left EXCEPT !.repeat = @ - 1]
  /\ UNCHANGED alive

Matched ==
  /\ Active(o) /\ o.matching
  /\ \E last \in BOOLEAN :
       LET free == {a \in Known : ~IsMember(o, a) /\ o.evicted[a] = Stays /\ o.asked[a] = Not /\ a \notin o.refused}
           pick(some) == IF some = {} THEN Nobody ELSE IF last THEN Max(some) ELSE Min(some)
           first == pick({a \in free : 0 \in Holds(a)})
           second == pick({a \in free : 1 \in Holds(a)} \ {first})
       IN Owner(Found(o, [c \in Reqs |-> IF c = 0 THEN first ELSE second]), net)
  /\ UNCHANGED <<workers, alive, left>>

ReserveTimer(a) ==
  /\ Active(o) /\ o.asked[a] # Not
  /\ \A m \in net : ~(m[3] = a /\ m[1] \in {"reserve", "accept"})
  /\ Owner(Silent(o, a), net)
  /\ UNCHANGED <<workers, alive, left>>

SolicitTimer(c) ==
  /\ Active(o) /\ o.soliciting[c]
  /\ \A m \in net : m[1] # "offer"
  /\ Owner(SolicitationOver(o, c), net)
  /\ UNCHANGED <<workers, alive, left>>

DispatchTimer(t) ==
  /\ Active(o) /\ o.asg[t] # Nobody /\ o.asg[t] \in alive
  /\ {<<"dispatch", t, o.asg[t]>>, <<"result", t, o.asg[t]>>} \cap net = {}
  /\ workers[o.asg[t]].subs[t] # "running"
  /\ Owner(DispatchAgain(o, t), net)
  /\ UNCHANGED <<workers, alive, left>>

Concerns(a) == Active(o) /\ (IsMember(o, a) \/ o.asked[a] # Not)

Detect(a) ==
  /\ Concerns(a) /\ a \notin alive
  /\ Owner(Evict(o, a, "crash"), net)
  /\ UNCHANGED <<workers, alive, left>>

Suspect(a) ==
  /\ Concerns(a) /\ a \in alive /\ left.suspect > 0
  /\ left' = [left EXCEPT !.suspect = @ - 1]
  /\ Owner(Evict(o, a, "crash"), net)
  /\ UNCHANGED <<workers, alive>>

Judge(a) ==
  /\ Active(o) /\ IsMember(o, a) /\ a \in alive /\ left.faulty > 0
  /\ left' = [left EXCEPT !.faulty = @ - 1]
  /\ Owner(Evict(o, a, "faulty"), net)
  /\ UNCHANGED <<workers, alive>>

ProvesAlive(a) ==
  /\ Active(o) /\ a \in alive /\ o.evicted[a][2] = "crash"
  /\ Owner(Revived(o, a), net)
  /\ UNCHANGED <<workers, alive, left>>

Finish(a, t) ==
  /\ a \in alive /\ workers[a].subs[t] = "running"
  /\ workers' = [workers EXCEPT ![a].subs[t] = "finished"]
  /\ net' = net \cup {<<"result", t, a>>}
  /\ UNCHANGED <<o, alive, left>>

LeaseEnds(a) ==
  /\ a \in alive /\ workers[a].held /\ ~Concerns(a)
  /\ \A m \in net : ~(m[3] = a /\ m[1] \in {"reserve", "release", "dispatch"})
  /\ workers' = [workers EXCEPT ![a].held = FALSE]
  /\ UNCHANGED <<o, alive, net, left>>

Crash(a) ==
  /\ ~Terminal /\ a \in alive /\ left.crash > 0
  /\ left' = [left EXCEPT !.crash = @ - 1]
  /\ alive' = alive \ {a}
  /\ workers' = [workers EXCEPT ![a] = Fresh]
  /\ UNCHANGED <<o, net>>

Ended == Terminal /\ UNCHANGED vars

System(t) ==
  \/ \E m \in net : Deliver(m)
  \/ Matched
  \/ \E c \in Reqs : SolicitTimer(c)
  \/ \E u \in t : DispatchTimer(u)
  \/ \E a \in Agents : ReserveTimer(a) \/ Detect(a) \/ ProvesAlive(a) \/ LeaseEnds(a) \/ \E u \in t : Finish(a, u)
Faults == \E a \in Agents : Suspect(a) \/ Judge(a) \/ Crash(a)
Next == System(Subs) \/ Faults \/ (\E m \in net : Lose(m) \/ Repeat(m)) \/ Ended

Messages == ({"reserve", "offer"} \X Reqs \X Agents) \cup ({"accept", "release"} \X {0} \X Agents)
            \cup ({"dispatch", "result", "ack"} \X Subs \X Agents)
Fairness ==
  /\ \A m \in Messages : WF_vars(Deliver(m))
  /\ \A a \in Agents : /\ WF_vars(ReserveTimer(a)) /\ WF_vars(Detect(a)) /\ WF_vars(ProvesAlive(a))
                       /\ WF_vars(LeaseEnds(a)) /\ \A t \in Subs : WF_vars(Finish(a, t))
  /\ \A c \in Reqs : WF_vars(SolicitTimer(c))
  /\ \A t \in Subs : WF_vars(DispatchTimer(t))
  /\ WF_vars(Matched)

Safety == Init /\ [][Next]_vars
Spec == Safety /\ Fairness

A1 == \A c \in Reqs : \A a \in o.pools[c] : c \in Holds(a) /\ a \in Known \cup Reachable
A2 == o.pools[0] \cap o.pools[1] = {}
S1 == Active(o) => \A t \in Subs : (o.asg[t] # Nobody /\ o.done[t] = Nobody) => o.asg[t] \in o.pools[Req(t)]
S2 == \A a \in Agents : IsMember(o, a) => o.evicted[a] = Stays
Order == \A t \in Subs : o.done[t] # Nobody => \A d \in After(t) : o.done[d] # Nobody
S3 == [][\A t \in Subs : o.done[t] # Nobody => o'.done[t] = o.done[t]]_vars
S5 == [][o'.pools # o.pools => o'.view > o.view]_vars
FaultyNever == [][\A t \in Subs : (o.done[t] = Nobody /\ o'.done[t] # Nobody) => o.evicted[o'.done[t]][2] # "faulty"]_vars
Ends == <>Terminal
=============================================================================
