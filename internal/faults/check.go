package faults

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// Anomaly is something that cannot have happened if the store keeps its promises.
type Anomaly struct {
	Kind    string // one of the constants below
	Dataset string
	What    string
	// At is when it could have been known first, on the clock of the history; 0 where that says nothing.
	At int64
}

func (a Anomaly) String() string { return fmt.Sprintf("%s: %s: %s", a.Kind, a.Dataset, a.What) }

// Kinds of anomalies.
const (
	LostCommit     = "lost commit"         // what was committed, and not dropped, is not there
	Torn           = "torn snapshot"       // it is there, and not whole, or not what was imported
	Doubled        = "doubled"             // an import is there twice, or a number was given out twice
	Reordered      = "numbers out of turn" // a later commit has a smaller number
	LostUpdate     = "lost update"         // a commit whose parent was not the newest
	Phantom        = "phantom"             // what was never committed, or whose commit has failed, is there
	Resurrected    = "dropped and back"    // what was dropped is there
	StaleTag       = "stale tag"           // a tag names what it did not name at any such time
	TaggedDropped  = "tagged and dropped"  // what has a tag was dropped
	Garbage        = "garbage"             // what nobody refers to stays
	Unread         = "not read at last"    // without faults, not two readers have read it whole
	BadHistory     = "bad history"         // the history cannot be of a run
	neverEnded     = math.MaxInt64
	needsReadersOf = 2
)

// Stats say how much a history has, for a run to see that it has shown something.
type Stats struct {
	Events  int
	Ended   map[string]int // operations, by what they do and how they ended: "commit ok"
	Numbers int            // snapshots that were seen by somebody
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

// op is an operation: between invoke and end it took effect, if it did.
type op struct {
	Event // its last event, with what the first one said

	invoke, end int64  // end is neverEnded if nobody knows when
	how         string // OK, Fail or Info
}

func (o *op) String() string {
	s := fmt.Sprintf("%s's %s", o.Process, o.Do)
	if o.Number != 0 {
		s += fmt.Sprintf(" of %d", o.Number)
	}
	return fmt.Sprintf("%s (op %d, %s)", s, o.Op, o.how)
}

// Check reads a history and returns what is wrong with it. It is sound: what it
// lists cannot be explained by any order in which the operations took effect, each
// between its beginning and its end. It takes no clock's word but the machine's monotonic one.
func Check(events []Event) ([]Anomaly, Stats) {
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

type checker struct {
	anomalies []Anomaly
	stats     Stats
	healed    int64 // since when there are no faults
}

// found notes an anomaly, which is known when the operations that args has have ended.
func (c *checker) found(kind, dataset, format string, args ...any) {
	a := Anomaly{Kind: kind, Dataset: dataset, What: fmt.Sprintf(format, args...)}
	for _, arg := range args {
		if o, ok := arg.(*op); ok && o.end != neverEnded {
			a.At = max(a.At, o.end)
		}
	}
	c.anomalies = append(c.anomalies, a)
}

// pair makes operations of events, ordered by when they began.
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
			// What is not known to have happened may still happen.
			if e.Type != Info {
				o.end = e.At
			} else if o.Do == Read || o.Do == List || o.Do == Tagged {
				o.end = e.At
			}
		}
	}
	slices.SortStableFunc(ops, func(a, b *op) int { return cmp.Compare(a.invoke, b.invoke) })
	return ops
}
