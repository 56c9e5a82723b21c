package faults

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// Anomaly is an observation that is impossible if the store keeps its guarantees.
type Anomaly struct {
	Kind    string // one of the constants below
	Dataset string
	What    string
	// At is the earliest time at which it could be known, on the clock of the history; 0 where that has no meaning.
	At int64
}

// String implements fmt.Stringer.
func (a Anomaly) String() string { return fmt.Sprintf("%s: %s: %s", a.Kind, a.Dataset, a.What) }

// The constants are the kinds of anomalies. They are texts, so that a report needs no
// table.
const (
	LostCommit     = "lost commit"         // a snapshot that was committed, and not dropped, is missing
	Torn           = "torn snapshot"       // a snapshot is incomplete, or not what was imported
	Doubled        = "doubled"             // an import is there twice, or a number was assigned twice
	Reordered      = "numbers out of turn" // a later commit has a smaller number
	LostUpdate     = "lost update"         // a commit whose parent was not the newest
	Phantom        = "phantom"             // a snapshot that was never committed, or whose commit failed, exists
	Resurrected    = "dropped and back"    // a snapshot that was dropped exists
	StaleTag       = "stale tag"           // a tag names a snapshot that it did not name at any possible time
	TaggedDropped  = "tagged and dropped"  // a snapshot with a tag was dropped
	Garbage        = "garbage"             // unreferenced data stays
	Unread         = "not read at last"    // without faults, fewer than two readers have read it whole
	BadHistory     = "bad history"         // the history cannot be of a run
	neverEnded     = math.MaxInt64
	needsReadersOf = 2
)

// Stats count the content of a history, so that a run can check that it tested something.
type Stats struct {
	Events  int
	Ended   map[string]int // operations, by what they do and how they ended: "commit ok"
	Numbers int            // snapshots that some process saw
	Reads   int            // of whole snapshots
}

// String lists the operations.
func (s Stats) String() string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(s.Ended)) {
		parts = append(parts, fmt.Sprintf("%s %d", k, s.Ended[k]))
	}
	return fmt.Sprintf("%d events, %d snapshots, %d read whole; %s", s.Events, s.Numbers, s.Reads,
		strings.Join(parts, ", "))
}

// op is an operation of a process. If it took effect, it did so between invoke and end.
type op struct {
	Event // its last event, with the fields of the first one

	invoke, end int64  // on the history's clock; end is neverEnded if the end is unknown
	how         string // OK, Fail or Info
}

func (o *op) String() string {
	s := fmt.Sprintf("%s's %s", o.Process, o.Do)
	if o.Number != 0 {
		s += fmt.Sprintf(" of %d", o.Number)
	}
	return fmt.Sprintf("%s (op %d, %s)", s, o.Op, o.how)
}

// Check reads a history and returns what is wrong with it. It is sound: what it lists cannot be explained by any
// order in which the operations took effect, each between its beginning and its end. It trusts only the machine's
// monotonic clock.
func Check(events []Event) ([]Anomaly, Stats) {
	// The phases are: pair events to operations, check what concerns no dataset, and then
	// check each dataset alone.
	c := &checker{stats: Stats{Events: len(events), Ended: map[string]int{}}, healed: neverEnded}
	ops := c.pair(events)
	byDataset := map[string][]*op{}
	for _, o := range ops {
		how := o.how
		if o.Absent {
			how = "absent"
		}
		c.stats.Ended[o.Do+" "+how]++
		switch o.Do {
		case Collect:
			if o.Damage != "" {
				c.found(Torn, o.Dataset, "%v found that what is committed is not whole: %s", o, o.Error)
			}
		case Left:
			if o.how == OK && o.Count != 0 {
				c.found(Garbage, o.Dataset, "%d rows are left when everything was dropped and collected: %s", o.Count,
					o.Error)
			}
		default:
			byDataset[o.Dataset] = append(byDataset[o.Dataset], o)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(byDataset)) {
		d := newDataset(c, name, byDataset[name])
		d.check()
		d.checkTags()
	}
	return c.anomalies, c.stats
}

// checker collects the anomalies of a history. One goroutine uses it.
type checker struct {
	anomalies []Anomaly
	stats     Stats
	healed    int64 // when the last fault ended; neverEnded if it did not
}

// found adds an anomaly. It is known at the end of the operations in args.
func (c *checker) found(kind, dataset, format string, args ...any) {
	a := Anomaly{Kind: kind, Dataset: dataset, What: fmt.Sprintf(format, args...)}
	for _, arg := range args {
		if o, ok := arg.(*op); ok && o.end != neverEnded {
			a.At = max(a.At, o.end)
		}
	}
	c.anomalies = append(c.anomalies, a)
}

// pair makes operations of events, in the order of their beginnings. A history that no
// process could have written is an anomaly of its own: a checker that ignored it could
// overlook the others.
func (c *checker) pair(events []Event) []*op {
	type id struct {
		process string
		op      int64
	}
	open := map[id]*op{}
	var ops []*op
	for _, e := range events {
		at := id{e.Process, e.Op}
		o := open[at]
		switch {
		case e.Do == Healed:
			c.healed = min(c.healed, e.At)
		case e.Type == Invoke && o == nil:
			o = &op{Event: e, invoke: e.At, end: neverEnded, how: Info}
			open[at] = o
			ops = append(ops, o)
		case e.Type == Invoke || o == nil || o.end != neverEnded || o.Do != e.Do || o.Dataset != e.Dataset ||
			e.At < o.invoke:
			c.found(BadHistory, e.Dataset, "event %+v does not fit what %s did before", e, e.Process)
		default:
			o.Event, o.how = e, e.Type
			// An operation without a known end may still take effect.
			if e.Type != Info {
				o.end = e.At
				// A read without an answer has no effect, so that its end is known.
			} else if o.Do == Read || o.Do == List || o.Do == Tagged {
				o.end = e.At
			}
		}
	}
	slices.SortStableFunc(ops, func(a, b *op) int { return cmp.Compare(a.invoke, b.invoke) })
	return ops
}
