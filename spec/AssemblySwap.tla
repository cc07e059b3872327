---------------------------- MODULE AssemblySwap ----------------------------
(* A team is assembled and keeps its subtasks going while members crash, are suspected wrongly or turn out to
   be faulty. Messages may be lost, repeated (by retransmission) and overtake each other.
   Code: python/pandacore/patterns/star.py. Invariants S1 to S4 of docs/protocols.md. *)
EXTENDS Naturals, FiniteSets

CONSTANTS MaxCrash, MaxSuspect, MaxFaulty, MaxLoss,
          Spares,  \* agents that the registry can offer beside the first two
          Bug      \* "none", "accept_faulty", "keep_assignment", "no_retransmission"

Subtasks == 1..3
Deps == << {}, {1}, {1} >>
Cap == << "c", "d", "c" >>
Caps == {"c", "d"}
Agents == {"x", "y"} \cup Spares
Holds(a) == CASE a = "x" -> {"c"} [] a = "y" -> {"d"} [] OTHER -> {"c", "d"}
None == "none"

VARIABLES phase, pool, pending, refused, evicted, asg, done, alive, running, cache, net, budget
vars == <<phase, pool, pending, refused, evicted, asg, done, alive, running, cache, net, budget>>

Team == pool["c"] \cup pool["d"]
Ready(s) == done[s] = None /\ \A d \in Deps[s] : done[d] # None

Init ==
  /\ phase = "forming"
  /\ pool = [c \in Caps |-> {}]
  /\ pending = [c \in Caps |-> None]
  /\ refused = [c \in Caps |-> {}]
  /\ evicted = [a \in Agents |-> "no"]
  /\ asg = [s \in Subtasks |-> None]
  /\ done = [s \in Subtasks |-> None]         \* the agent whose output was committed
  /\ alive = [a \in Agents |-> TRUE]
  /\ running = [a \in Agents |-> {}]
  /\ cache = [a \in Agents |-> {}]
  /\ net = {}
  /\ budget = [crash |-> MaxCrash, suspect |-> MaxSuspect, faulty |-> MaxFaulty, loss |-> MaxLoss]

(* ---- assembly: reserve one member per capability ---- *)
Reserve(c) ==
  /\ phase = "forming" /\ pool[c] = {} /\ pending[c] = None
  /\ \E a \in Agents \ refused[c] :
       /\ c \in Holds(a)
       /\ pending' = [pending EXCEPT ![c] = a]
       /\ net' = net \cup {<<"reserve", c, a>>}
  /\ UNCHANGED <<phase, pool, refused, evicted, asg, done, alive, running, cache, budget>>

ReserveAgain(c) ==
  /\ phase = "forming" /\ pending[c] # None /\ alive[pending[c]]
  /\ {<<"reserve", c, pending[c]>>, <<"ack", c, pending[c]>>} \cap net = {}
  /\ Bug # "no_retransmission"
  /\ net' = net \cup {<<"reserve", c, pending[c]>>}
  /\ UNCHANGED <<phase, pool, pending, refused, evicted, asg, done, alive, running, cache, budget>>

GiveUp(c) ==
  /\ phase = "forming" /\ pending[c] # None /\ ~alive[pending[c]]
  /\ refused' = [refused EXCEPT ![c] = @ \cup {pending[c]}]
  /\ pending' = [pending EXCEPT ![c] = None]
  /\ UNCHANGED <<phase, pool, evicted, asg, done, alive, running, cache, net, budget>>

Unmatched(c) ==
  /\ phase = "forming" /\ pool[c] = {} /\ pending[c] = None
  /\ \A a \in Agents : c \in Holds(a) => a \in refused[c]
  /\ phase' = "failed" /\ net' = {}
  /\ UNCHANGED <<pool, pending, refused, evicted, asg, done, alive, running, cache, budget>>

Formed ==
  /\ phase = "forming" /\ \A c \in Caps : pool[c] # {}
  /\ phase' = "running"
  /\ UNCHANGED <<pool, pending, refused, evicted, asg, done, alive, running, cache, net, budget>>

(* ---- dispatch and swap ---- *)
Dispatch(s) ==
  /\ phase = "running" /\ Ready(s) /\ asg[s] = None
  /\ \E a \in pool[Cap[s]] :
       /\ asg' = [asg EXCEPT ![s] = a]
       /\ net' = net \cup {<<"dispatch", s, a>>}
  /\ UNCHANGED <<phase, pool, pending, refused, evicted, done, alive, running, cache, budget>>

DispatchAgain(s) ==
  /\ phase = "running" /\ Ready(s) /\ asg[s] # None /\ Bug # "no_retransmission"
  /\ alive[asg[s]] /\ s \notin running[asg[s]]
  /\ {<<"dispatch", s, asg[s]>>, <<"result", s, asg[s]>>} \cap net = {}
  /\ net' = net \cup {<<"dispatch", s, asg[s]>>}
  /\ UNCHANGED <<phase, pool, pending, refused, evicted, asg, done, alive, running, cache, budget>>

Evict(a, why) ==
  /\ evicted' = [evicted EXCEPT ![a] = why]
  /\ pool' = [c \in Caps |-> pool[c] \ {a}]
  /\ asg' = IF Bug = "keep_assignment" THEN asg
            ELSE [s \in Subtasks |-> IF asg[s] = a /\ done[s] = None THEN None ELSE asg[s]]

Detect(a) ==
  /\ phase = "running" /\ a \in Team /\ ~alive[a]
  /\ Evict(a, "crash")
  /\ UNCHANGED <<phase, pending, refused, done, alive, running, cache, net, budget>>

Suspect(a) ==
  /\ phase = "running" /\ a \in Team /\ alive[a] /\ budget.suspect > 0
  /\ budget' = [budget EXCEPT !.suspect = @ - 1]
  /\ Evict(a, "crash")
  /\ UNCHANGED <<phase, pending, refused, done, alive, running, cache, net>>

Judge(a) ==
  /\ phase = "running" /\ a \in Team /\ alive[a] /\ budget.faulty > 0
  /\ budget' = [budget EXCEPT !.faulty = @ - 1]
  /\ Evict(a, "faulty")
  /\ UNCHANGED <<phase, pending, refused, done, alive, running, cache, net>>

Lacks(c) == phase = "running" /\ pool[c] = {} /\ \E s \in Subtasks : Ready(s) /\ asg[s] = None /\ Cap[s] = c

Fresh(c) == {b \in Agents : c \in Holds(b) /\ evicted[b] = "no" /\ b \notin pool[c] /\ alive[b]}
Back(c) == {b \in Agents : c \in Holds(b) /\ evicted[b] = "crash" /\ alive[b]}

Replace(c) ==
  /\ Lacks(c)
  /\ \E b \in (IF Fresh(c) # {} THEN Fresh(c) ELSE Back(c)) :
       /\ pool' = [pool EXCEPT ![c] = @ \cup {b}]
       /\ evicted' = [evicted EXCEPT ![b] = "no"]
  /\ UNCHANGED <<phase, pending, refused, asg, done, alive, running, cache, net, budget>>

NoReplacement(c) ==
  /\ Lacks(c) /\ Fresh(c) = {} /\ Back(c) = {}
  /\ phase' = "failed" /\ net' = {}
  /\ UNCHANGED <<pool, pending, refused, evicted, asg, done, alive, running, cache, budget>>

Finish ==
  /\ phase = "running" /\ \A s \in Subtasks : done[s] # None
  /\ phase' = "completed" /\ net' = {}
  /\ UNCHANGED <<pool, pending, refused, evicted, asg, done, alive, running, cache, budget>>

(* ---- agents and the network ---- *)
Work(a) ==
  /\ alive[a]
  /\ \E s \in running[a] :
       /\ running' = [running EXCEPT ![a] = @ \ {s}]
       /\ cache' = [cache EXCEPT ![a] = @ \cup {s}]
       /\ net' = net \cup {<<"result", s, a>>}
  /\ UNCHANGED <<phase, pool, pending, refused, evicted, asg, done, alive, budget>>

Deliver(m) ==
  /\ m \in net
  /\ LET s == m[2] a == m[3] rest == net \ {m} IN
     CASE m[1] = "reserve" ->
            /\ net' = IF alive[a] THEN rest \cup {<<"ack", s, a>>} ELSE rest
            /\ UNCHANGED <<pool, pending, done, running>>
       [] m[1] = "ack" ->
            /\ net' = rest
            /\ IF phase = "forming" /\ pending[s] = a
               THEN pool' = [pool EXCEPT ![s] = @ \cup {a}] /\ pending' = [pending EXCEPT ![s] = None]
               ELSE UNCHANGED <<pool, pending>>
            /\ UNCHANGED <<done, running>>
       [] m[1] = "dispatch" ->
            /\ net' = IF alive[a] /\ s \in cache[a] THEN rest \cup {<<"result", s, a>>} ELSE rest
            /\ running' = IF alive[a] /\ s \notin cache[a]
                          THEN [running EXCEPT ![a] = @ \cup {s}] ELSE running
            /\ UNCHANGED <<pool, pending, done>>
       [] m[1] = "result" ->
            /\ net' = rest
            /\ done' = IF done[s] = None /\ (evicted[a] # "faulty" \/ Bug = "accept_faulty")
                       THEN [done EXCEPT ![s] = a] ELSE done
            /\ UNCHANGED <<pool, pending, running>>
  /\ UNCHANGED <<phase, refused, evicted, asg, alive, cache, budget>>

Lose(m) ==
  /\ m \in net /\ budget.loss > 0
  /\ net' = net \ {m}
  /\ budget' = [budget EXCEPT !.loss = @ - 1]
  /\ UNCHANGED <<phase, pool, pending, refused, evicted, asg, done, alive, running, cache>>

Crash(a) ==
  /\ phase \in {"forming", "running"} /\ alive[a] /\ budget.crash > 0
  /\ budget' = [budget EXCEPT !.crash = @ - 1]
  /\ alive' = [alive EXCEPT ![a] = FALSE]
  /\ running' = [running EXCEPT ![a] = {}]
  /\ cache' = [cache EXCEPT ![a] = {}]
  /\ UNCHANGED <<phase, pool, pending, refused, evicted, asg, done, net>>

Ended == phase \in {"completed", "failed"} /\ UNCHANGED vars

System ==
  \/ \E c \in Caps : Reserve(c) \/ ReserveAgain(c) \/ GiveUp(c) \/ Unmatched(c) \/ Replace(c) \/ NoReplacement(c)
  \/ \E s \in Subtasks : Dispatch(s) \/ DispatchAgain(s)
  \/ \E a \in Agents : Detect(a) \/ Work(a)
  \/ \E m \in net : Deliver(m)
  \/ Formed \/ Finish
Faults == \E a \in Agents : Crash(a) \/ Suspect(a) \/ Judge(a)
Next == System \/ Faults \/ (\E m \in net : Lose(m)) \/ Ended

Messages == ({"reserve", "ack"} \X Caps \X Agents) \cup ({"dispatch", "result"} \X Subtasks \X Agents)
Fairness ==
  /\ \A c \in Caps : /\ WF_vars(Reserve(c)) /\ WF_vars(ReserveAgain(c)) /\ WF_vars(GiveUp(c))
                     /\ WF_vars(Unmatched(c)) /\ WF_vars(Replace(c)) /\ WF_vars(NoReplacement(c))
  /\ \A s \in Subtasks : WF_vars(Dispatch(s)) /\ WF_vars(DispatchAgain(s))
  /\ \A a \in Agents : WF_vars(Detect(a)) /\ WF_vars(Work(a))
  /\ \A m \in Messages : WF_vars(Deliver(m))
  /\ WF_vars(Formed) /\ WF_vars(Finish)

Safety == Init /\ [][Next]_vars
Spec == Safety /\ Fairness

S1 == \A s \in Subtasks : (asg[s] # None /\ done[s] = None) =>
        asg[s] \in pool[Cap[s]] /\ evicted[asg[s]] = "no" /\ Cap[s] \in Holds(asg[s])
S2 == \A a \in Agents : a \in Team => evicted[a] = "no"
Order == \A s \in Subtasks : done[s] # None => \A d \in Deps[s] : done[d] # None
S3 == [][\A s \in Subtasks : done[s] # None => done'[s] = done[s]]_vars
S4 == [][\A s \in Subtasks, a \in Agents :
           (<<"dispatch", s, a>> \in net' /\ <<"dispatch", s, a>> \notin net) => done[s] = None]_vars
FaultyNever == [][\A s \in Subtasks : (done[s] = None /\ done'[s] # None) => evicted[done'[s]] # "faulty"]_vars
Ends == <>(phase \in {"completed", "failed"})
=============================================================================
