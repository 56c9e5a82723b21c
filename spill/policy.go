package spill

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"bowstring/schema"
)

// Time is a time on the clock of whoever asks, in nanoseconds. Nothing in a policy reads a clock, so
// that it can be replayed in virtual time.
type Time int64

// Place is where a blob occurs: a sample of a dataset. Dataset is a number that the caller gives to
// each snapshot (see [Cache.Dataset]); 0 stands for a blob that is at no known place. Tenant says in the
// same way on whose account it is wanted there (see [Cache.Tenant]); 0 is nobody's.
type Place struct {
	Dataset  uint32
	Tenant   uint16
	Position int64 // negative of a page of the manifest, as PageAt has it
}

// PageAt is the place of the page of a dataset's manifest that begins at a position. It is used with each of its rows.
func PageAt(dataset uint32, start int64) Place { return Place{Dataset: dataset, Position: -1 - start} }

// IsPage reports whether a place is that of a page of a manifest.
func (p Place) IsPage() bool { return p.Position < 0 }

// page returns where the page begins that a place is of, if it is of one.
func (p Place) page() (start int64, ok bool) { return -1 - p.Position, p.Position < 0 }

// Entry is what a policy is told of a blob.
type Entry struct {
	Place Place
	Size  int64         // bytes
	Cost  time.Duration // what getting it once more from the store would take
	Uses  uint32        // how often it was wanted since it was stored, that time included
	Added Time          // when it was stored
	Used  Time          // when it was wanted last
	Spare bool          // another node near owns it and keeps it, too: see [Cache.SetSpare]
}

// Worth is what keeping a blob is worth, for comparison at one time. A blob that is going to be used
// is worth more than any other. Of those, one that another node keeps too is worth less than one that the
// store alone has: it costs that node a question, not the store a read.
type Worth struct {
	Planned bool
	Spare   bool
	Value   float64
}

// Less reports whether w is worth less than o.
func (w Worth) Less(o Worth) bool {
	if w.Planned != o.Planned {
		return o.Planned
	}
	if w.Spare != o.Spare {
		return w.Spare
	}
	return w.Value < o.Value
}

// Policy says which blobs to keep. It has no list of them: it is shown some, and is asked for
// the worth of each. Implementations are safe for concurrent use.
type Policy interface {
	// Name is the policy's name, as [ParsePolicy] takes it.
	Name() string
	// Worth is what keeping e is worth at a time; the candidate that is worth least is evicted.
	// e is the caller's and may change after the call.
	Worth(e *Entry, now Time) Worth
	// Admit reports whether a new blob may take the place of the one that would be evicted for it.
	// Otherwise the new one is not stored (it bypasses the cache).
	Admit(newcomer, victim Worth) bool
}

// Oracle knows the future.
type Oracle interface {
	// NextUse returns when the blob at a place is used next; false if no job that runs will.
	NextUse(at Place, now Time) (Time, bool)
}

// Policies are the names of the policies there are.
var Policies = []string{"next-use", "lru", "fifo", "static", "score"}

// ParsePolicy returns the policy of a name. The oracle is next-use's. The error is a
// [schema.FieldError].
func ParsePolicy(name string, oracle Oracle) (Policy, error) {
	switch name {
	case "next-use":
		return NextUse(oracle), nil
	case "lru":
		return LRU(), nil
	case "fifo":
		return FIFO(), nil
	case "static":
		return Static(), nil
	case "score":
		return Score(), nil
	}
	return nil, &schema.FieldError{Field: "policy", Got: strconv.Quote(name), Want: strings.Join(Policies, ", ")}
}

// NextUse evicts what will be used last, and does not store what would be used later than that:
// Belady's rule ("A study of replacement algorithms for a virtual-storage computer", 1966), with a
// sample of the blobs in the place of all. What no job is known to use counts by [Score], and for less
// than all that some job will use.
func NextUse(oracle Oracle) Policy { return nextUse{oracle} }

type nextUse struct{ oracle Oracle }

func (nextUse) Name() string { return "next-use" }

func (p nextUse) Worth(e *Entry, now Time) Worth {
	if at, ok := p.oracle.NextUse(e.Place, now); ok {
		return Worth{Planned: true, Spare: e.Spare, Value: -float64(at)}
	}
	return score{}.Worth(e, now)
}

// Admit lets what nobody is known to use in only where it displaces nothing that somebody is.
func (nextUse) Admit(newcomer, victim Worth) bool {
	if !newcomer.Planned && !victim.Planned {
		return score{}.Admit(newcomer, victim)
	}
	return victim.Less(newcomer)
}

// Score evicts what has the least cost to get × frequency ÷ (age × size), where the frequency is the
// number of uses since it was stored and the age the time since then: the hyperbolic priority of
// Blankstein, Sen and Freedman, "Hyperbolic caching: flexible caching for web applications", USENIX ATC
// 2017, in its form for unequal costs and sizes, and evaluated as there, lazily, on a sample. What is new
// has no age yet, and is always stored.
func Score() Policy { return score{} }

type score struct{}

func (score) Name() string { return "score" }

func (score) Worth(e *Entry, now Time) Worth {
	age := max(float64(now-e.Added), 1)
	// A blob of no bytes still takes a place, and one that cost nothing a question.
	cost := max(float64(e.Cost), 1)
	return Worth{Value: cost * float64(e.Uses) / (age * float64(max(e.Size, 1)))}
}

func (score) Admit(Worth, Worth) bool { return true }

// LRU evicts what was used the longest time ago.
func LRU() Policy { return lru{} }

type lru struct{}

func (lru) Name() string                 { return "lru" }
func (lru) Worth(e *Entry, _ Time) Worth { return Worth{Value: float64(e.Used)} }
func (lru) Admit(Worth, Worth) bool      { return true }

// FIFO evicts what was stored the longest time ago.
func FIFO() Policy { return fifo{} }

type fifo struct{}

func (fifo) Name() string                 { return "fifo" }
func (fifo) Worth(e *Entry, _ Time) Worth { return Worth{Value: float64(e.Added)} }
func (fifo) Admit(Worth, Worth) bool      { return true }

// Static keeps what was stored first, and stores nothing more once it is full.
func Static() Policy { return static{} }

type static struct{}

func (static) Name() string             { return "static" }
func (static) Worth(*Entry, Time) Worth { return Worth{Value: math.Inf(1)} }
func (static) Admit(Worth, Worth) bool  { return false }

var _ fmt.Stringer = Worth{}

// String is for logs.
func (w Worth) String() string {
	if w.Planned {
		return fmt.Sprintf("next use at %.3f s", -w.Value/1e9)
	}
	return fmt.Sprintf("score %.3g", w.Value)
}
