---------------------------- MODULE StarFailover ----------------------------
(* The hub and two stand-ins keep the checkpoint; an output counts once a majority has it. When the hub is lost
   or suspected, a stand-in claims the next epoch: it needs the word of a majority, and goes on from the newest
   copy among them. Code: python/pandacore/patterns/star.py. *)
EXTENDS Naturals, FiniteSets

CONSTANTS MaxEpoch, MaxCrash, MaxSuspect, MaxLoss,
          Count, \* subtasks, each of which needs the one before
          Bug   \* "none", "no_fencing", "no_quorum", "oldest_copy", "no_retransmission"

Nodes == {"h", "p", "q"}
First(n) == CASE n = "p" -> 1 [] n = "q" -> 2 [] OTHER -> 3   \* the order of succession
Subtasks == 1..Count
Quorum == IF Bug = "no_quorum" THEN 1 ELSE 2
Empty == [s \in Subtasks |-> 0]

VARIABLES alive, promised, owner, copy, leads, acks, claim, grants, committed, clash, net, budget, ended
vars == <<alive, promised, owner, copy, leads, acks, claim, grants, committed, clash, net, budget, ended>>

Init ==
  /\ alive = [n \in Nodes |-> TRUE]
  /\ promised = [n \in Nodes |-> 1]
  /\ owner = [n \in Nodes |-> "h"]
  /\ copy = [n \in Nodes |-> [e |-> IF n = "h" THEN 1 ELSE 0, d |-> Empty]]  \* d: epoch that made the output
  /\ leads = [n \in Nodes |-> IF n = "h" THEN 1 ELSE 0]
  /\ acks = [n \in Nodes |-> IF n = "h" THEN {"h"} ELSE {}]       \* who has the leader's present copy
  /\ claim = [n \in Nodes |-> 0]
  /\ grants = [n \in Nodes |-> {}]
  /\ committed = Empty
  /\ clash = FALSE
  /\ net = {}
  /\ budget = [crash |-> MaxCrash, suspect |-> MaxSuspect, loss |-> MaxLoss]
  /\ ended = FALSE

Size(d) == Cardinality({s \in Subtasks : d[s] # 0})
Newer(a, b) == a.e > b.e \/ (a.e = b.e /\ Size(a.d) > Size(b.d))
Settled(n) == /\ Cardinality(acks[n]) >= Quorum
              /\ \A s \in Subtasks : copy[n].d[s] # 0 => committed[s] = copy[n].d[s]

Others(n) == Nodes \ {n}
Copies(n, c) == {<<"copy", n, m, c>> : m \in Others(n)}

(* An output arrives; the leader keeps it and sends the copy round. One at a time: it waits for the quorum. *)
Result(n) ==
  /\ ~ended /\ alive[n] /\ leads[n] # 0 /\ Settled(n)
  /\ \E s \in Subtasks :
       /\ copy[n].d[s] = 0 /\ \A r \in Subtasks : r < s => copy[n].d[r] # 0
       /\ copy' = [copy EXCEPT ![n].d[s] = leads[n]]
  /\ acks' = [acks EXCEPT ![n] = {n}]
  /\ net' = net \cup Copies(n, copy'[n])
  /\ UNCHANGED <<alive, promised, owner, leads, claim, grants, committed, clash, budget, ended>>

Resend(n, m) ==
  /\ ~ended /\ alive[n] /\ leads[n] # 0 /\ ~Settled(n) /\ m \in Others(n) \ acks[n] /\ alive[m]
  /\ Bug # "no_retransmission"
  /\ {<<"copy", n, m, copy[n]>>, <<"ack", m, n, copy[n]>>} \cap net = {}
  /\ net' = net \cup {<<"copy", n, m, copy[n]>>}
  /\ UNCHANGED <<alive, promised, owner, copy, leads, acks, claim, grants, committed, clash, budget, ended>>

Commit(n) ==
  /\ ~ended /\ alive[n] /\ leads[n] # 0 /\ Cardinality(acks[n]) >= Quorum /\ ~Settled(n)
  /\ committed' = [s \in Subtasks |-> IF committed[s] = 0 THEN copy[n].d[s] ELSE committed[s]]
  /\ clash' = (clash \/ \E s \in Subtasks : committed[s] # 0 /\ copy[n].d[s] # committed[s])
  /\ UNCHANGED <<alive, promised, owner, copy, leads, acks, claim, grants, net, budget, ended>>

End(n) ==
  /\ ~ended /\ alive[n] /\ leads[n] # 0 /\ Settled(n) /\ Size(copy[n].d) = Cardinality(Subtasks)
  /\ ended' = TRUE /\ net' = {}
  /\ UNCHANGED <<alive, promised, owner, copy, leads, acks, claim, grants, committed, clash, budget>>

(* ---- succession ---- *)
Claim(n) ==
  /\ promised[n] < MaxEpoch
  /\ promised' = [promised EXCEPT ![n] = @ + 1]
  /\ owner' = [owner EXCEPT ![n] = n]
  /\ claim' = [claim EXCEPT ![n] = promised[n] + 1]
  /\ grants' = [grants EXCEPT ![n] = {<<n, copy[n]>>}]
  /\ net' = net \cup {<<"claim", n, m, [e |-> promised[n] + 1, d |-> Empty]>> : m \in Others(n)}

Leaderless(n) == ~alive[owner[n]] \/ (owner[n] = n /\ leads[n] = 0)
MyTurn(n) == \A m \in Nodes : (alive[m] /\ m # n) => First(n) < First(m) \/ m = owner[n]

Succeed(n) ==
  /\ ~ended /\ alive[n] /\ leads[n] = 0 /\ claim[n] = 0 /\ Leaderless(n) /\ MyTurn(n)
  /\ Claim(n)
  /\ UNCHANGED <<alive, copy, leads, acks, committed, clash, budget, ended>>

Suspect(n) ==
  /\ ~ended /\ alive[n] /\ leads[n] = 0 /\ claim[n] = 0 /\ alive[owner[n]] /\ budget.suspect > 0
  /\ budget' = [budget EXCEPT !.suspect = @ - 1]
  /\ Claim(n)
  /\ UNCHANGED <<alive, copy, leads, acks, committed, clash, ended>>

ClaimAgain(n, m) ==
  /\ ~ended /\ alive[n] /\ claim[n] # 0 /\ m \in Others(n) /\ alive[m] /\ m \notin {g[1] : g \in grants[n]}
  /\ Bug # "no_retransmission"
  /\ LET c == <<"claim", n, m, [e |-> claim[n], d |-> Empty]>> IN
     /\ c \notin net /\ ~\E x \in net : x[2] = m /\ x[3] = n /\ x[1] \in {"grant", "fence"}
     /\ net' = net \cup {c}
  /\ UNCHANGED <<alive, promised, owner, copy, leads, acks, claim, grants, committed, clash, budget, ended>>

Lead(n) ==
  /\ ~ended /\ alive[n] /\ claim[n] # 0 /\ Cardinality(grants[n]) >= Quorum
  /\ LET known == {g[2] : g \in grants[n]}
         best == IF Bug = "oldest_copy" THEN CHOOSE c \in known : \A o \in known : ~Newer(c, o)
                 ELSE CHOOSE c \in known : \A o \in known : ~Newer(o, c)
     IN /\ copy' = [copy EXCEPT ![n] = [e |-> claim[n], d |-> best.d]]
        /\ net' = net \cup Copies(n, copy'[n])
  /\ leads' = [leads EXCEPT ![n] = claim[n]]
  /\ acks' = [acks EXCEPT ![n] = {n}]
  /\ claim' = [claim EXCEPT ![n] = 0]
  /\ UNCHANGED <<alive, promised, owner, grants, committed, clash, budget, ended>>

StepDown(n, e, who) ==
  /\ promised' = [promised EXCEPT ![n] = e]
  /\ owner' = [owner EXCEPT ![n] = who]
  /\ leads' = [leads EXCEPT ![n] = IF n = who THEN @ ELSE 0]
  /\ claim' = [claim EXCEPT ![n] = IF n = who THEN @ ELSE 0]

Deliver(m) ==
  /\ m \in net
  /\ LET kind == m[1] from == m[2] to == m[3] c == m[4] rest == net \ {m} IN
     CASE ~alive[to] -> net' = rest /\ UNCHANGED <<promised, owner, copy, leads, acks, claim, grants>>
       [] alive[to] /\ kind = "copy" ->
            IF c.e >= promised[to] \/ Bug = "no_fencing"
            THEN /\ StepDown(to, IF c.e > promised[to] THEN c.e ELSE promised[to], from)
                 /\ copy' = [copy EXCEPT ![to] = IF Newer(c, @) \/ Bug = "no_fencing" THEN c ELSE @]
                 /\ net' = rest \cup {<<"ack", to, from, c>>}
                 /\ UNCHANGED <<acks, grants>>
            ELSE /\ net' = rest \cup {<<"fence", to, from, [e |-> promised[to], d |-> Empty]>>}
                 /\ UNCHANGED <<promised, owner, copy, leads, acks, claim, grants>>
       [] alive[to] /\ kind = "ack" ->
            /\ net' = rest
            /\ acks' = IF leads[to] # 0 /\ c = copy[to] THEN [acks EXCEPT ![to] = @ \cup {from}] ELSE acks
            /\ UNCHANGED <<promised, owner, copy, leads, claim, grants>>
       [] alive[to] /\ kind = "claim" ->
            IF c.e > promised[to] \/ (c.e = promised[to] /\ owner[to] = from)
            THEN /\ StepDown(to, c.e, from)
                 /\ net' = rest \cup {<<"grant", to, from, [e |-> copy[to].e, d |-> copy[to].d]>>}
                 /\ UNCHANGED <<copy, acks, grants>>
            ELSE /\ net' = rest \cup {<<"fence", to, from, [e |-> promised[to], d |-> Empty]>>}
                 /\ UNCHANGED <<promised, owner, copy, leads, acks, claim, grants>>
       [] alive[to] /\ kind = "grant" ->
            /\ net' = rest
            /\ grants' = IF claim[to] # 0 /\ promised[from] = claim[to]
                         THEN [grants EXCEPT ![to] = @ \cup {<<from, c>>}] ELSE grants
            /\ UNCHANGED <<promised, owner, copy, leads, acks, claim>>
       [] alive[to] /\ kind = "fence" ->
            /\ net' = rest
            /\ IF (c.e > promised[to] \/ claim[to] # 0) /\ Bug # "no_fencing"
               THEN /\ promised' = [promised EXCEPT ![to] = IF c.e > @ THEN c.e ELSE @]
                    /\ owner' = [owner EXCEPT ![to] = to]   \* nobody known: it may claim again
                    /\ leads' = [leads EXCEPT ![to] = 0]
                    /\ claim' = [claim EXCEPT ![to] = 0]
               ELSE UNCHANGED <<promised, owner, leads, claim>>
            /\ UNCHANGED <<copy, acks, grants>>
  /\ UNCHANGED <<alive, committed, clash, budget, ended>>

Lose(m) ==
  /\ m \in net /\ budget.loss > 0
  /\ net' = net \ {m}
  /\ budget' = [budget EXCEPT !.loss = @ - 1]
  /\ UNCHANGED <<alive, promised, owner, copy, leads, acks, claim, grants, committed, clash, ended>>

Crash(n) ==
  /\ ~ended /\ alive[n] /\ budget.crash > 0
  /\ budget' = [budget EXCEPT !.crash = @ - 1]
  /\ alive' = [alive EXCEPT ![n] = FALSE]
  /\ leads' = [leads EXCEPT ![n] = 0]
  /\ UNCHANGED <<promised, owner, copy, acks, claim, grants, committed, clash, net, ended>>

Exhausted == \E n \in Nodes : promised[n] = MaxEpoch
Stop == (ended \/ Exhausted) /\ UNCHANGED vars

Next ==
  \/ \E n \in Nodes : Result(n) \/ Commit(n) \/ End(n) \/ Succeed(n) \/ Suspect(n) \/ Lead(n) \/ Crash(n)
  \/ \E n, m \in Nodes : Resend(n, m) \/ ClaimAgain(n, m)
  \/ \E x \in net : Deliver(x) \/ Lose(x)
  \/ Stop

Fairness ==
  /\ \A n \in Nodes : WF_vars(Result(n)) /\ WF_vars(Commit(n)) /\ WF_vars(End(n)) /\ WF_vars(Succeed(n)) /\ WF_vars(Lead(n))
  /\ \A n, m \in Nodes : WF_vars(Resend(n, m)) /\ WF_vars(ClaimAgain(n, m))
  /\ \A k \in {"copy", "ack", "claim", "grant", "fence"}, n, m \in Nodes :
       WF_vars(\E x \in net : x[1] = k /\ x[2] = n /\ x[3] = m /\ Deliver(x))

Safety == Init /\ [][Next]_vars
Spec == Safety /\ Fairness

(* What a quorum had is never replaced: every output is committed at most once, with one value. *)
ExactlyOnce == ~clash
OneLeader == \A n, m \in Nodes : (leads[n] # 0 /\ leads[n] = leads[m]) => n = m
S3 == [][\A s \in Subtasks : committed[s] # 0 => committed'[s] = committed[s]]_vars
Epochs == [][\A n \in Nodes : promised'[n] >= promised[n]]_vars
Ends == <>(ended \/ Exhausted)
=============================================================================
