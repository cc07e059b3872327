----------------------------- MODULE MeshVoting -----------------------------
(* Three voters adopt one of two plans. A convener per epoch collects ballots and decides; tallies over
   different ballots may differ. Light: a higher epoch replaces a lower one. Certified: a plan is adopted once a
   quorum has accepted it, and a later convener proposes again what a quorum may have accepted.
   Code: python/pandacore/patterns/mesh.py. Invariants M1, M2 of docs/protocols.md. *)
EXTENDS Naturals, FiniteSets

CONSTANTS MaxEpoch, MaxCrash, MaxSuspect, Certified,
          Bug   \* "none", "no_promise" (a later convener ignores what was accepted)

Voters == 0..2
Plans == {"p", "q"}
Quorum == 2
None == "none"
Epochs == 1..MaxEpoch
Convener(e) == (e - 1) % 3

VARIABLES alive, promised, accepted, adopted, epoch, heard, decided, acks, budget, outcome
vars == <<alive, promised, accepted, adopted, epoch, heard, decided, acks, budget, outcome>>

Init ==
  /\ alive = [v \in Voters |-> TRUE]
  /\ promised = [v \in Voters |-> 0]
  /\ accepted = [v \in Voters |-> <<0, None>>]
  /\ adopted = [v \in Voters |-> <<0, None>>]
  /\ epoch = 1                                    \* the highest epoch that anybody opened
  /\ heard = [e \in Epochs |-> {}]                \* <<voter, what it had accepted>> known to the convener
  /\ decided = [e \in Epochs |-> None]
  /\ acks = [e \in Epochs |-> {}]
  /\ budget = [crash |-> MaxCrash, suspect |-> MaxSuspect]
  /\ outcome = "running"

Live == {v \in Voters : alive[v]}

(* A message is a step of its receiver that may come at any time, or never: a lost message is a step not taken.
   A deposed convener's proposals and adoptions (e < epoch) go on arriving. *)
Ballot(v) ==
  /\ outcome = "running" /\ alive[v] /\ alive[Convener(epoch)] /\ decided[epoch] = None
  /\ promised[v] <= epoch
  /\ v \notin {h[1] : h \in heard[epoch]}
  /\ promised' = [promised EXCEPT ![v] = epoch]
  /\ heard' = [heard EXCEPT ![epoch] = @ \cup {<<v, accepted[v]>>}]
  /\ UNCHANGED <<alive, accepted, adopted, epoch, decided, acks, budget, outcome>>

Forced(e) ==
  LET known == {h[2] : h \in heard[e]}
      best == CHOOSE k \in known : \A o \in known : o[1] <= k[1]
  IN IF best[1] = 0 \/ Bug = "no_promise" THEN Plans ELSE {best[2]}

(* Tallies over different ballots may name different winners: any plan may win. *)
Decide(e) ==
  /\ outcome = "running" /\ alive[Convener(e)] /\ decided[e] = None
  /\ Cardinality(heard[e]) >= Quorum
  /\ \E p \in (IF Certified THEN Forced(e) ELSE Plans) : decided' = [decided EXCEPT ![e] = p]
  /\ UNCHANGED <<alive, promised, accepted, adopted, epoch, heard, acks, budget, outcome>>

Accept(e, v) ==
  /\ outcome = "running" /\ Certified /\ decided[e] # None /\ alive[v] /\ v \notin acks[e]
  /\ promised[v] <= e
  /\ promised' = [promised EXCEPT ![v] = e]
  /\ accepted' = [accepted EXCEPT ![v] = <<e, decided[e]>>]
  /\ acks' = [acks EXCEPT ![e] = @ \cup {v}]
  /\ UNCHANGED <<alive, adopted, epoch, heard, decided, budget, outcome>>

Adopt(e, v) ==
  /\ outcome = "running" /\ decided[e] # None /\ (Certified => Cardinality(acks[e]) >= Quorum)
  /\ alive[v] /\ adopted[v][1] < e
  /\ adopted' = [adopted EXCEPT ![v] = <<e, decided[e]>>]
  /\ UNCHANGED <<alive, promised, accepted, epoch, heard, decided, acks, budget, outcome>>

(* The convener is lost or suspected. *)
NextEpoch ==
  /\ outcome = "running" /\ ~alive[Convener(epoch)]
  /\ IF epoch = MaxEpoch THEN outcome' = "failed" /\ UNCHANGED epoch
     ELSE epoch' = epoch + 1 /\ UNCHANGED outcome
  /\ UNCHANGED <<alive, promised, accepted, adopted, heard, decided, acks, budget>>

Suspect ==
  /\ outcome = "running" /\ alive[Convener(epoch)] /\ budget.suspect > 0 /\ epoch < MaxEpoch
  /\ epoch' = epoch + 1
  /\ budget' = [budget EXCEPT !.suspect = @ - 1]
  /\ UNCHANGED <<alive, promised, accepted, adopted, heard, decided, acks, outcome>>

Crash(v) ==
  /\ outcome = "running" /\ alive[v] /\ budget.crash > 0 /\ Cardinality(Live) > Quorum
  /\ budget' = [budget EXCEPT !.crash = @ - 1]
  /\ alive' = [alive EXCEPT ![v] = FALSE]
  /\ UNCHANGED <<promised, accepted, adopted, epoch, heard, decided, acks, outcome>>

Finish ==
  /\ outcome = "running" /\ \E p \in Plans : \A v \in Live : adopted[v][2] = p
  /\ \A v \in Live : Certified \/ adopted[v][1] = epoch
  /\ outcome' = "agreed"
  /\ UNCHANGED <<alive, promised, accepted, adopted, epoch, heard, decided, acks, budget>>

Ended == outcome # "running" /\ UNCHANGED vars

Next ==
  \/ \E v \in Voters : Ballot(v) \/ Crash(v)
  \/ \E e \in Epochs : Decide(e) \/ (\E v \in Voters : Accept(e, v) \/ Adopt(e, v))
  \/ NextEpoch \/ Suspect \/ Finish \/ Ended

(* Only what the present convener says is sure to arrive. *)
Fairness ==
  /\ \A v \in Voters : /\ WF_vars(Ballot(v))
                       /\ WF_vars(alive[Convener(epoch)] /\ Accept(epoch, v))
                       /\ WF_vars(alive[Convener(epoch)] /\ Adopt(epoch, v))
  /\ WF_vars(Decide(epoch)) /\ WF_vars(NextEpoch) /\ WF_vars(Finish)

Safety == Init /\ [][Next]_vars
Spec == Safety /\ Fairness

M1 == \A v, w \in Voters : (adopted[v][1] = adopted[w][1] /\ adopted[v][1] # 0) => adopted[v] = adopted[w]
M2 == \A v, w \in Voters : (adopted[v][1] # 0 /\ adopted[w][1] # 0) => adopted[v][2] = adopted[w][2]
Ends == <>(outcome # "running")
=============================================================================
