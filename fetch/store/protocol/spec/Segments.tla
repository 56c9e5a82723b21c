------------------------------ MODULE Segments ------------------------------
(***************************************************************************)
(* How ingests and collections agree where blobs lie in segments. Each     *)
(* process has one ingest with one segment, which nobody writes again. A   *)
(* snapshot names segments: its ingest's own, and those of others that a   *)
(* live snapshot names in the version of the partition that the commit is  *)
(* made for. Package protocol says it in words. Nothing is touched, and no *)
(* deletion has a condition: what is dead once is dead for good. Processes *)
(* stop for as long as they like between any two steps.                    *)
(***************************************************************************)
EXTENDS Integers, FiniteSets, TLC

CONSTANTS
  Procs,      \* each of which ingests and collects
  MaxEpoch,   \* how many collections there are
  MaxSnaps,   \* how many snapshots at the same time
  Fence,      \* commits look for their registration
  Recheck,       \* ingests look for a collection once they are registered
  Named       \* commits name what a live snapshot names, and nothing else

None == 0

VARIABLES
  control,    \* the epoch of the latest collection
  reg,        \* the epoch that a process's ingest is registered with, or None
  known,      \* the epoch that a process knows of
  ingest,     \* where its ingest stands
  of,         \* the epoch that its segment's name says
  segment,    \* "none", "there" or "gone"
  snaps,      \* the live snapshots: sets of the processes whose segments they name
  seen,       \* what was ever named
  coll        \* [at, epoch, keep, marked]: a process's collection

Symmetric == Permutations(Procs)
vars == <<control, reg, known, ingest, of, segment, snaps, seen, coll>>
Idle == [at |-> "none", epoch |-> None, keep |-> None, marked |-> {}]

Init ==
  /\ control = 1
  /\ reg = [p \in Procs |-> None]
  /\ known = [p \in Procs |-> 1]
  /\ ingest = [p \in Procs |-> "none"]
  /\ of = [p \in Procs |-> None]
  /\ segment = [p \in Procs |-> "none"]
  /\ snaps = {} /\ seen = {}
  /\ coll = [p \in Procs |-> Idle]

Learn(p) ==
  /\ known[p] # control
  /\ known' = [known EXCEPT ![p] = control]
  /\ UNCHANGED <<control, reg, ingest, of, segment, snaps, seen, coll>>

Register(p) ==
  /\ ingest[p] \in {"none", "again"}
  /\ reg' = [reg EXCEPT ![p] = known[p]]
  /\ of' = [of EXCEPT ![p] = known[p]]
  /\ ingest' = [ingest EXCEPT ![p] = IF Recheck THEN "registered" ELSE "open"]
  /\ UNCHANGED <<control, known, segment, snaps, seen, coll>>

RecheckFor(p) ==
  /\ ingest[p] = "registered"
  /\ known' = [known EXCEPT ![p] = control]
  /\ ingest' = [ingest EXCEPT ![p] = IF control = of[p] THEN "open" ELSE "again"]
  /\ UNCHANGED <<control, reg, of, segment, snaps, seen, coll>>

\* Whether it is registered still or not. The write of a process that is taken for dead arrives when it likes.
Write(p) ==
  /\ ingest[p] = "open"
  /\ segment[p] = "none"
  /\ segment' = [segment EXCEPT ![p] = "there"]
  /\ ingest' = [ingest EXCEPT ![p] = "has put"]
  /\ UNCHANGED <<control, reg, known, of, snaps, seen, coll>>

Commit(p) ==
  /\ ingest[p] = "has put"
  /\ Fence => reg[p] # None
  /\ Cardinality(snaps) < MaxSnaps
  /\ \E carried \in SUBSET (IF Named THEN UNION snaps ELSE seen) :
       /\ snaps' = snaps \cup {carried \cup {p}}
       /\ seen' = seen \cup {p}
  /\ reg' = [reg EXCEPT ![p] = None]
  /\ ingest' = [ingest EXCEPT ![p] = "done"]
  /\ UNCHANGED <<control, known, of, segment, coll>>

Close(p) ==
  /\ ingest[p] \in {"registered", "again", "open", "has put"}
  /\ reg' = [reg EXCEPT ![p] = None]
  /\ ingest' = [ingest EXCEPT ![p] = "done"]
  /\ UNCHANGED <<control, known, of, segment, snaps, seen, coll>>

Drop ==
  /\ \E s \in snaps : snaps' = snaps \ {s}
  /\ UNCHANGED <<control, reg, known, ingest, of, segment, seen, coll>>

Begin(p) ==
  /\ coll[p].at = "none"
  /\ control < MaxEpoch
  /\ control' = control + 1
  /\ coll' = [coll EXCEPT ![p] = [Idle EXCEPT !.at = "begun", !.epoch = control + 1]]
  /\ UNCHANGED <<reg, known, ingest, of, segment, snaps, seen>>

\* Some registrations are taken away, of processes that are taken for dead. The others are kept.
Settle(p) ==
  /\ coll[p].at = "begun"
  /\ \E there \in SUBSET {q \in Procs : reg[q] # None} :
       /\ reg' = [q \in Procs |-> IF q \in there THEN reg[q] ELSE None]
       /\ coll' = [coll EXCEPT ![p] = [@ EXCEPT
            !.at = "sweeping", !.marked = UNION snaps,
            !.keep = CHOOSE e \in 1..MaxEpoch :
              /\ \A q \in there : e <= reg[q]
              /\ e <= coll[p].epoch
              /\ e = coll[p].epoch \/ \E q \in there : e = reg[q]]]
  /\ UNCHANGED <<control, known, ingest, of, segment, snaps, seen>>

\* A deletion, whenever it arrives; of a collection that was superseded, too.
Delete(p) ==
  /\ coll[p].at = "sweeping"
  /\ \E q \in Procs :
       /\ segment[q] = "there" /\ q \notin coll[p].marked /\ of[q] < coll[p].keep
       /\ segment' = [segment EXCEPT ![q] = "gone"]
  /\ UNCHANGED <<control, reg, known, ingest, of, snaps, seen, coll>>

End(p) ==
  /\ coll[p].at = "sweeping"
  /\ coll' = [coll EXCEPT ![p] = Idle]
  /\ UNCHANGED <<control, reg, known, ingest, of, segment, snaps, seen>>

Next ==
  \/ Drop
  \/ \E p \in Procs :
       \/ Learn(p) \/ Register(p) \/ RecheckFor(p) \/ Write(p) \/ Commit(p) \/ Close(p)
       \/ Begin(p) \/ Settle(p) \/ Delete(p) \/ End(p)

Spec == Init /\ [][Next]_vars

\* A segment of a committed snapshot is never deleted.
Safe == \A s \in snaps : \A q \in s : segment[q] = "there"
=============================================================================
