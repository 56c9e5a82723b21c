package protocol

// bug is a set of mistakes that tests plant, to see that they are found.
type bug uint64

const (
	bugCommitUnfenced     bug = 1 << iota // a commit does not look for its registration
	bugOwnLaterEpoch                      // a superseded collection goes on, in the epoch of the one after
	bugPeekRoots                          // roots are read unsettled, and no ingest is fenced
	bugLapseUnfenced                      // the ingests of lapsed processes are left registered
	bugAckEarly                           // an epoch is acked before the puts that do not know of it have ended
	bugNoWait                             // a collection does not wait
	bugTrustAll                           // what is stored is relied upon while a collection runs
	bugTrustTouched                       // what was touched since the ingest began is relied upon then
	bugDeleteTooMuch                      // a deletion takes what the collection's own epoch wrote
	bugDeleteOnce                         // a deletion whose outcome is not known counts as made
	bugRegisterLate                       // an ingest is registered when it commits
	bugControlUnread                      // an ingest does not look for a collection once it is registered
	bugUncleanForgotten                   // a collection that did not come to its end leaves no trace
	bugLeftoverForgotten                  // and the next one that does takes away the trace
	bugKeepNothing                        // touches protect nothing
	bugRootsEarly                         // roots are read before the collection is announced
	bugSelectionsUnrooted                 // bitmaps are no roots
	bugHeldUnrooted                       // nor is what is dropped and read
	bugRecordsUnrooted                    // nor are records
	bugSetsUnrooted                       // nor are object sets
	bugHoldUnseen                         // a reader does not look again during a collection
	bugCommitTwice                        // an attempt whose answer was lost is repeated blindly
	bugNumberTwice                        // numbers follow the newest snapshot, not the last
	bugBytesUnseen                        // a row is taken for its bytes
	bugStateBackwards                     // an older state of collections replaces a newer one
	bugTagsIgnored                        // what has a tag is dropped
	bugUnfinishedKept                     // what a put has left without a size is no garbage
	bugRootsUnconfirmed                   // a collection that was superseded before it had its roots goes on
	bugCarriedUnnamed                     // a commit may name sets that no live snapshot names
	bugUnsynced                           // a commit does not wait until its segments are durable
	bugProofsUnrooted                     // checksums that were learned are no roots
	bugLateKept                           // segments that come after the collection that ended their ingest are kept
	bugProofsForgotten                    // a collection forgets those of a set that a snapshot has come to name meanwhile

	endOfBugs
)

// everywhere is planted into each store that is made. Only a build with the tag planted sets it.
var everywhere bug

// planted says whether a mistake is to be made. Nothing but tests sets any.
func (s *Store) planted(b bug) bool { return s.bugs&b != 0 }
