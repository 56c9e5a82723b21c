package protocol

import (
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"bowstring/internal/rounds"
)

var (
	seeds  = flag.Int("seeds", 0, "how many seeds to simulate; 0 for 2,000, in make nightly 10,000")
	from   = flag.Uint64("from", 1, "the first of them; 0 for any")
	seed   = flag.Uint64("seed", 0, "the seed to simulate, and to say what happened")
	plant  = flag.String("plant", "", "the mistake to plant into it")
	report = flag.String("report", "", "a file for what came of it, as JSON")
)

// shortSeeds is how many seeds are run under -short.
const shortSeeds = 300

// rare are mistakes that are found after 3,000 to 13,000 seeds: in make nightly, which hunts them in twice as many.
var rare = []string{"leftover forgotten", "ack early", "proofs forgotten"}

// numberOfSeeds is how many seeds are simulated, without a mistake or until one is found.
func numberOfSeeds() int {
	if *seeds == 0 {
		return rounds.Count(2_000, 10_000)
	}
	return *seeds
}

type mistake struct {
	name string
	bug  bug
}

// mistakes are the planted mistakes that the simulation finds, by name.
var mistakes = []mistake{
	{"commit unfenced", bugCommitUnfenced},
	{"own later epoch", bugOwnLaterEpoch},
	{"peek roots", bugPeekRoots},
	{"lapse unfenced", bugLapseUnfenced},
	{"no wait", bugNoWait},
	{"trust all", bugTrustAll},
	{"trust touched", bugTrustTouched},
	{"delete too much", bugDeleteTooMuch},
	{"register late", bugRegisterLate},
	{"control unread", bugControlUnread},
	{"keep nothing", bugKeepNothing},
	{"roots early", bugRootsEarly},
	{"selections unrooted", bugSelectionsUnrooted},
	{"held unrooted", bugHeldUnrooted},
	{"records unrooted", bugRecordsUnrooted},
	{"sets unrooted", bugSetsUnrooted},
	{"hold unseen", bugHoldUnseen},
	{"commit twice", bugCommitTwice},
	{"number twice", bugNumberTwice},
	{"bytes unseen", bugBytesUnseen},
	{"tags ignored", bugTagsIgnored},
	{"unfinished kept", bugUnfinishedKept},
	{"ack early", bugAckEarly},
	{"delete once", bugDeleteOnce},
	{"state backwards", bugStateBackwards},
	{"leftover forgotten", bugLeftoverForgotten},
	{"proofs unrooted", bugProofsUnrooted},
	{"proofs forgotten", bugProofsForgotten},
}

// packedMistakes are those that are found where blobs are in segments. Two mistakes have
// no effect there. A deletion whose answer was lost is made by the next collection, which
// lists the segment again. And the epoch of a deletion does not matter: a collection
// judges a segment by the epoch of its ingest, and a segment is never written again.
var packedMistakes = []mistake{
	{"sets unrooted", bugSetsUnrooted},
	{"carried unnamed", bugCarriedUnnamed},
	{"unsynced", bugUnsynced},
	{"commit unfenced", bugCommitUnfenced},
	{"peek roots", bugPeekRoots},
	{"lapse unfenced", bugLapseUnfenced},
	{"no wait", bugNoWait},
	{"register late", bugRegisterLate},
	{"control unread", bugControlUnread},
	{"keep nothing", bugKeepNothing},
	{"roots early", bugRootsEarly},
	{"selections unrooted", bugSelectionsUnrooted},
	{"held unrooted", bugHeldUnrooted},
	{"hold unseen", bugHoldUnseen},
	{"commit twice", bugCommitTwice},
	{"number twice", bugNumberTwice},
	{"tags ignored", bugTagsIgnored},
	{"proofs unrooted", bugProofsUnrooted},
	{"late kept", bugLateKept},
}

// directed are mistakes that seeds do not meet, or hardly ever, and that tests of their own find (TestSupersededRoots,
// TestUncleanForgotten).
var directed = []mistake{
	{"roots unconfirmed", bugRootsUnconfirmed},
	{"unclean forgotten", bugUncleanForgotten},
}

// hunt simulates seeds on all processors until one fails, and returns it, or 0.
func hunt(first uint64, n int, bugs bug) (failed uint64, err error) {
	const workers = 2
	// All that is allocated is garbage at once, and little of it is held.
	defer debug.SetGCPercent(debug.SetGCPercent(1600))
	var next atomic.Int64
	var mu sync.Mutex
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			var idle coroutines
			defer idle.close()
			for {
				i := next.Add(1) - 1
				mu.Lock()
				stop := err != nil
				mu.Unlock()
				if stop || i >= int64(n) {
					return
				}
				if _, wrong := simulate(&idle, first+uint64(i), bugs, nil); wrong != nil {
					mu.Lock()
					if err == nil {
						failed, err = first+uint64(i), wrong
					}
					mu.Unlock()
				}
			}
		})
	}
	all.Wait()
	return failed, err
}

// outcome is what the tests report.
type outcome struct {
	Seeds      int      `json:"seeds"`
	Seconds    float64  `json:"seconds"`
	Violations int      `json:"violations"`
	Planted    int      `json:"planted"`
	Missed     int      `json:"planted_missed"`
	MissedAre  []string `json:"missed"`
}

var summary outcome

func print(t *testing.T) {
	if *report == "" {
		return
	}
	text, err := json.Marshal(summary)
	if err == nil {
		err = os.WriteFile(*report, text, 0o600)
	}
	if err != nil {
		t.Error(err)
	}
}

// firstSeed is the same each time unless asked otherwise, so that runs before and after a
// change use the same seeds. A search for more failures may begin anywhere.
func firstSeed() uint64 {
	if *from != 0 {
		return *from
	}
	return rand.Uint64N(1<<48) + 1
}

// TestSimulation: whatever happens to processes, messages and clocks, what the
// package promises holds.
func TestSimulation(t *testing.T) {
	if *seed != 0 {
		replay(t)
		return
	}
	n := numberOfSeeds()
	if testing.Short() {
		n = min(n, shortSeeds)
	}
	first := firstSeed()
	t.Logf("seeds %d to %d", first, first+uint64(n)-1)
	begun := time.Now()
	failed, err := hunt(first, n, 0)
	summary.Seeds, summary.Seconds = n, time.Since(begun).Seconds()
	if err == nil { // as many where blobs are in segments
		failed, err = hunt(first|packedSeeds, n, 0)
		summary.Seeds += n
	}
	if err != nil {
		summary.Violations++
		t.Errorf("seed %d: %v\nrun it by: go test -run '^TestSimulation$' ./fetch/store/protocol -v -args -seed=%d",
			failed, err, failed)
	}
	print(t)
}

// replay runs one seed, and says what happened.
func replay(t *testing.T) {
	var bugs bug
	for _, m := range slices.Concat(mistakes, directed, packedMistakes) {
		if m.name == *plant {
			bugs = m.bug
		}
	}
	var trace strings.Builder
	var idle coroutines
	defer idle.close()
	hash, err := simulate(&idle, *seed, bugs, &trace)
	t.Logf("%s\nhash %016x", trace.String(), hash)
	if err != nil {
		t.Error(err)
	}
}

// TestSimulationRepeats: a seed is the same run each time.
func TestSimulationRepeats(t *testing.T) {
	first := rand.Uint64N(1<<48) + 1
	t.Logf("seeds %d and following", first)
	hashes := map[uint64]bool{}
	var idle coroutines
	defer idle.close()
	for s := first; s < first+50; s++ {
		one, err1 := simulate(&idle, s, 0, nil)
		two, err2 := simulate(&idle, s, 0, &strings.Builder{})
		if one != two || fmt.Sprint(err1) != fmt.Sprint(err2) {
			t.Fatalf("seed %d came to %x (%v) and then to %x (%v)", s, one, err1, two, err2)
		}
		hashes[one] = true
	}
	if len(hashes) < 50 {
		t.Errorf("50 seeds are %d different runs", len(hashes))
	}
}

// TestPlanted: each mistake that can be planted is found.
func TestPlanted(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a minute")
	}
	only := 0 // planted where blobs are in segments
	for _, m := range packedMistakes {
		if !slices.Contains(mistakes, m) {
			only++
		}
	}
	if want := len(mistakes) + len(directed) + only; 1<<want != int(endOfBugs) {
		t.Errorf("%d mistakes are listed, there are others", want)
	}
	n := numberOfSeeds()
	summary.Planted = len(mistakes) + len(packedMistakes)
	for i, m := range slices.Concat(mistakes, packedMistakes) {
		name, first := m.name, firstSeed()
		if i >= len(mistakes) {
			name, first = "segments, "+name, first|packedSeeds
		}
		t.Run(name, func(t *testing.T) {
			n := n
			if i < len(mistakes) && slices.Contains(rare, name) {
				if n < 10_000 {
					t.Skip("takes more seeds than there are")
				}
				n *= 2
			}
			failed, err := hunt(first, n, m.bug)
			if err == nil {
				summary.Missed++
				summary.MissedAre = append(summary.MissedAre, m.name)
				t.Errorf("it was not found in seeds %d to %d", first, first+uint64(n)-1)
				return
			}
			t.Logf("found after %d: %v", failed-first+1, err)
		})
	}
	print(t)
}
