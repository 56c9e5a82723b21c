package protocol

// bug is a set of mistakes that tests plant in the protocol, to check that the simulation
// finds each. A mistake that no test finds would mean that the tests prove little.
type bug uint64

const (
	bugCommitUnfenced     bug = 1 << iota // a commit does not require its registration
	bugOwnLaterEpoch                      // a superseded collection continues, in the epoch of its successor
	bugPeekRoots                          // roots are read unsettled, and no ingest is fenced
	bugLapseUnfenced                      // the ingests of lapsed processes stay registered
	bugAckEarly                           // an epoch is acknowledged before the puts that do not know of it have ended
	bugNoWait                             // a collection does not wait
	bugTrustAll                           // puts rely on everything that is stored while a collection runs
	bugTrustTouched                       // puts then rely on everything that was touched since the ingest began
	bugDeleteTooMuch                      // a deletion removes what the collection's own epoch wrote
	bugDeleteOnce                         // a deletion with an unknown outcome counts as made
	bugRegisterLate                       // an ingest is registered when it commits
	bugControlUnread                      // an ingest does not read the control partition after it is registered
	bugUncleanForgotten                   // a failed collection leaves no trace
	bugLeftoverForgotten                  // the next successful collection removes the trace in any case
	bugKeepNothing                        // touches protect nothing
	bugRootsEarly                         // roots are read before the collection is announced
	bugSelectionsUnrooted                 // bitmaps of selections are no roots
	bugHeldUnrooted                       // dropped snapshots that are read are no roots
	bugRecordsUnrooted                    // records of snapshots are no roots
	bugSetsUnrooted                       // object sets are no roots
	bugHoldUnseen                         // a reader does not check again during a collection
	bugCommitTwice                        // a commit whose answer was lost is repeated blindly
	bugNumberTwice                        // numbers follow the newest snapshot, not the last number
	bugBytesUnseen                        // a row counts as proof of its bytes
	bugStateBackwards                     // an older state of collections replaces a newer one
	bugTagsIgnored                        // snapshots with a tag are dropped
	bugUnfinishedKept                     // a row without a size is no garbage
	bugRootsUnconfirmed                   // a collection that was superseded before it had its roots continues
	bugCarriedUnnamed                     // a commit may name sets that no live snapshot names
	bugUnsynced                           // a commit does not wait until its segments are durable
	bugProofsUnrooted                     // learned checksums are no roots
	bugLateKept                           // segments that arrive after the collection that ended their ingest are kept
	bugProofsForgotten                    // a collection forgets the checksums of a set that a new snapshot names

	endOfBugs
)

// everywhere is planted into each store. Only a build with the tag planted sets it.
var everywhere bug

// planted reports whether a mistake is planted. Only tests plant any.
func (s *Store) planted(b bug) bool { return s.bugs&b != 0 }
