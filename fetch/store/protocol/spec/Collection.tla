----------------------------- MODULE Collection -----------------------------
(***************************************************************************)
(* How ingests and collections of a store agree on one blob. Package       *)
(* protocol says it in words; the names are the same here. A swap is one   *)
(* step, as its condition is the version that its partition was loaded at. *)
(* Processes stop for as long as they like between any two steps, and may  *)
(* be taken for dead at any moment: no clock takes part. What members say  *)
(* in their rows is taken from what they know, as both only grow.          *)
(***************************************************************************)
EXTENDS Integers, FiniteSets, TLC

CONSTANTS
  Procs,      \* each of which ingests and collects
  MaxEpoch,   \* how many collections there are
  Fence,      \* commits look for their registration
  Wait,       \* collections wait for acks
  Barrier,    \* acks wait for puts
  Confirm,    \* collections that were superseded before they had settled end there
  Leftovers   \* an end takes note of what older deletions may still meet

None == 0     \* no epoch; epochs count from 1

VARIABLES
  control,    \* [epoch, run, unclean]: the partition of the protocol itself
  reg,        \* the epoch that a process's ingest is registered with, or None
  live,       \* a snapshot that refers to the blob is committed and not dropped
  known,      \* [epoch, trusted]: what a process knows of collections
  ingest,     \* where its ingest stands
  put,        \* [epoch, trusted] that its put began with
  stored,     \* the epoch that the blob's bytes were written in, or None
  touched,    \* the latest epoch in which somebody wanted it
  gone,       \* the latest epoch of which writes are deleted
  coll        \* [at, epoch, before, keep, marked, leftover]: a process's collection

Symmetric == Permutations(Procs)
vars == <<control, reg, live, known, ingest, put, stored, touched, gone, coll>>

Max(a, b) == IF a > b THEN a ELSE b
\* A touch that was deleted is as none: what is of no use any more is forgotten
\* everywhere, so that states which differ in nothing else are one.
TouchedAt(e, g) == IF e > g THEN e ELSE None
Whole == stored > gone
NoPut == [epoch |-> None, trusted |-> None]
Idle == [at |-> "none", epoch |-> None, before |-> None, keep |-> None, marked |-> FALSE, leftover |-> FALSE]

Init ==
  /\ control = [epoch |-> 1, run |-> "none", unclean |-> None]
  /\ reg = [p \in Procs |-> None]
  /\ live = FALSE
  /\ known = [p \in Procs |-> [epoch |-> 1, trusted |-> None]]
  /\ ingest = [p \in Procs |-> "none"]
  /\ put = [p \in Procs |-> NoPut]
  /\ stored = None /\ touched = None /\ gone = None
  /\ coll = [p \in Procs |-> Idle]

Putting(p) == ingest[p] \in {"touching", "writing"}

(***************************************************************************)
(* Members                                                                 *)
(***************************************************************************)
Learn(p) ==
  /\ known' = [known EXCEPT ![p] = [epoch |-> control.epoch, trusted |-> control.unclean]]
  /\ known' # known
  /\ UNCHANGED <<control, reg, live, ingest, put, stored, touched, gone, coll>>

Knows(p) == IF Barrier /\ Putting(p) THEN put[p].epoch ELSE known[p].epoch

(***************************************************************************)
(* Ingests                                                                 *)
(***************************************************************************)
Register(p) ==
  /\ ingest[p] = "none"
  /\ reg' = [reg EXCEPT ![p] = known[p].epoch]
  /\ ingest' = [ingest EXCEPT ![p] = "registered"]
  /\ UNCHANGED <<control, live, known, put, stored, touched, gone, coll>>

\* What it puts from here on knows of every collection that does not know of it.
Look(p) ==
  /\ ingest[p] = "registered"
  /\ known' = [known EXCEPT ![p] = [epoch |-> control.epoch, trusted |-> control.unclean]]
  /\ ingest' = [ingest EXCEPT ![p] = "open"]
  /\ UNCHANGED <<control, reg, live, put, stored, touched, gone, coll>>

BeginPut(p) ==
  /\ ingest[p] = "open"
  /\ put' = [put EXCEPT ![p] = known[p]]
  /\ ingest' = [ingest EXCEPT ![p] = "touching"]
  /\ UNCHANGED <<control, reg, live, known, stored, touched, gone, coll>>

Touch(p) ==
  /\ ingest[p] = "touching"
  /\ touched' = TouchedAt(Max(touched, put[p].epoch), gone)
  /\ LET there == Whole /\ stored >= put[p].trusted IN
       /\ ingest' = [ingest EXCEPT ![p] = IF there THEN "has put" ELSE "writing"]
       /\ put' = [put EXCEPT ![p] = IF there THEN NoPut ELSE @]
  /\ UNCHANGED <<control, reg, live, known, stored, gone, coll>>

Write(p) ==
  /\ ingest[p] = "writing"
  /\ stored' = Max(stored, put[p].epoch)
  /\ touched' = TouchedAt(Max(touched, put[p].epoch), gone)
  /\ ingest' = [ingest EXCEPT ![p] = "has put"]
  /\ put' = [put EXCEPT ![p] = NoPut]
  /\ UNCHANGED <<control, reg, live, known, gone, coll>>

Commit(p) ==
  /\ ingest[p] = "has put"
  /\ Fence => reg[p] # None
  /\ live' = TRUE
  /\ reg' = [reg EXCEPT ![p] = None]
  /\ ingest' = [ingest EXCEPT ![p] = "none"]
  /\ UNCHANGED <<control, known, put, stored, touched, gone, coll>>

Close(p) ==
  /\ ingest[p] \in {"registered", "open", "has put"}
  /\ reg' = [reg EXCEPT ![p] = None]
  /\ ingest' = [ingest EXCEPT ![p] = "none"]
  /\ UNCHANGED <<control, live, known, put, stored, touched, gone, coll>>

Drop ==
  /\ live
  /\ live' = FALSE
  /\ UNCHANGED <<control, reg, known, ingest, put, stored, touched, gone, coll>>

(***************************************************************************)
(* Collections                                                             *)
(***************************************************************************)
Current(p) == control.run = p /\ control.epoch = coll[p].epoch

\* One that was superseded and has nothing to do but to end, ends there and then: nothing comes of it.
Begin(p) ==
  /\ coll[p].at = "none"
  /\ control.epoch < MaxEpoch
  /\ LET e == control.epoch + 1 IN
       /\ control' = [epoch |-> e, run |-> p, unclean |-> e]
       /\ coll' = [q \in Procs |->
            IF q = p THEN [Idle EXCEPT !.at = "agreeing", !.epoch = e, !.before = control.unclean]
            ELSE IF coll[q].at = "ending" THEN Idle ELSE coll[q]]
  /\ UNCHANGED <<reg, live, known, ingest, put, stored, touched, gone>>

\* Some processes say that they know of the collection; the registrations of the
\* others go, as these are taken for dead. Without Wait all are taken at their word.
Settle(p) ==
  /\ coll[p].at = "agreeing"
  /\ \E there \in SUBSET {q \in Procs : reg[q] # None} :
       /\ Wait => \A q \in there : Knows(q) >= coll[p].epoch
       /\ reg' = [q \in Procs |-> IF q \in there THEN reg[q] ELSE None]
       /\ coll' = [coll EXCEPT ![p] = [@ EXCEPT
            !.at = "settled", !.marked = live,
            !.keep = CHOOSE e \in 1..MaxEpoch :
              /\ \A q \in there : e <= reg[q]
              /\ e <= coll[p].epoch
              /\ e = coll[p].epoch \/ \E q \in there : e = reg[q]]]
  /\ UNCHANGED <<control, live, known, ingest, put, stored, touched, gone>>

\* Only now is it sure that no other had begun when it looked for what is live. What a later
\* one finds live was made so by an ingest that knew of this one.
Sure(p) ==
  /\ coll[p].at = "settled"
  /\ coll' = [coll EXCEPT ![p] = IF Confirm => Current(p) THEN [@ EXCEPT !.at = "scanning"] ELSE Idle]
  /\ UNCHANGED <<control, reg, live, known, ingest, put, stored, touched, gone>>

Scan(p) ==
  /\ coll[p].at = "scanning"
  /\ LET seen == Max(IF Whole THEN stored ELSE None, touched)
         dead == ~coll[p].marked /\ seen < coll[p].keep
         over == ~dead /\ ~coll[p].marked /\ seen # None /\ stored < coll[p].before IN
       coll' = [coll EXCEPT ![p] =
         IF dead THEN [Idle EXCEPT !.at = "deleting", !.epoch = coll[p].epoch]
         ELSE IF ~Current(p) THEN Idle
         ELSE [Idle EXCEPT !.at = "ending", !.epoch = coll[p].epoch,
                           !.before = IF over THEN coll[p].before ELSE None, !.leftover = over]]
  /\ UNCHANGED <<control, reg, live, known, ingest, put, stored, touched, gone>>

\* Of a collection that was superseded, too, and whenever it likes.
Delete(p) ==
  /\ coll[p].at \in {"deleting", "failed"}
  /\ gone' = Max(gone, coll[p].epoch - 1)
  /\ touched' = TouchedAt(touched, gone')
  /\ coll' = [coll EXCEPT ![p] = IF @.at = "deleting" /\ Current(p) THEN [@ EXCEPT !.at = "ending"] ELSE Idle]
  /\ UNCHANGED <<control, reg, live, known, ingest, put, stored>>

End(p) ==
  /\ coll[p].at = "ending"
  /\ control' = [control EXCEPT !.run = "none", !.unclean = IF Leftovers /\ coll[p].leftover THEN coll[p].before ELSE None]
  /\ coll' = [coll EXCEPT ![p] = Idle]
  /\ UNCHANGED <<reg, live, known, ingest, put, stored, touched, gone>>

\* It gives up and says so, with a deletion on its way.
Fail(p) ==
  /\ coll[p].at = "deleting"
  /\ Current(p)
  /\ control' = [control EXCEPT !.run = "none"]
  /\ coll' = [coll EXCEPT ![p].at = "failed"]
  /\ UNCHANGED <<reg, live, known, ingest, put, stored, touched, gone>>

Next ==
  \/ Drop
  \/ \E p \in Procs :
       \/ Learn(p)
       \/ Register(p) \/ Look(p) \/ BeginPut(p) \/ Touch(p) \/ Write(p) \/ Commit(p) \/ Close(p)
       \/ Begin(p) \/ Settle(p) \/ Sure(p) \/ Scan(p) \/ Delete(p) \/ End(p) \/ Fail(p)

Spec == Init /\ [][Next]_vars

\* What is committed is whole.
Safe == live => Whole
=============================================================================
