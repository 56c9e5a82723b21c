package faults

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// Kind is the kind of a fault.
type Kind string

// KillNode and the constants below it are the kinds of faults. A fault of a node has its
// number in Fault.Node. A fault between two nodes has the other one in Fault.To. A fault
// of a process has its name in Fault.Process.
const (
	KillNode    Kind = "kill node"    // SIGKILL; started again afterwards
	StopNode    Kind = "stop node"    // SIGSTOP, and SIGCONT afterwards
	Clock       Kind = "clock"        // the clock of a node is wrong by Fault.By
	Isolate     Kind = "isolate"      // no data between a node and both others
	OneWay      Kind = "one way"      // no data from a node to another one
	Slow        Kind = "slow"         // data from and to a node is late by Fault.By
	Lossy       Kind = "lossy"        // Fault.Share of the data from and to a node is lost
	Clients     Kind = "clients"      // no data between all clients and a node
	KillProcess Kind = "kill process" // SIGKILL; another takes its place at once
	StopProcess Kind = "stop process"
)

// Fault is a fault of a schedule. Fields that its kind does not use are 0.
type Fault struct {
	At, For time.Duration // since the start of the run, and the duration
	Kind    Kind
	Node    int // from 0
	To      int
	Process string
	By      time.Duration
	Share   float64
	// Hold delays the data until the fault is over. Without it, connections are cut.
	Hold bool
}

// String describes the fault on one line.
func (f Fault) String() string {
	s := fmt.Sprintf("%5.1fs +%4.1fs  %s", f.At.Seconds(), f.For.Seconds(), f.Kind)
	switch f.Kind {
	case KillProcess, StopProcess:
		s += " " + f.Process
	case OneWay:
		s += fmt.Sprintf(" %d to %d", f.Node+1, f.To+1)
	default:
		s += fmt.Sprintf(" %d", f.Node+1)
	}
	if f.By != 0 {
		s += fmt.Sprintf(" by %+.1fs", f.By.Seconds())
	}
	if f.Share != 0 {
		s += fmt.Sprintf(" %.0f %%", 100*f.Share)
	}
	if f.Hold {
		s += ", held back"
	}
	return s
}

// Nodes is the number of nodes of the cluster. A quorum of three is two, so that one may
// fail.
const Nodes = 3

// Schedule is the faults of a run, in the order of time.
type Schedule []Fault

// String lists the faults, one per line.
func (s Schedule) String() string {
	var b strings.Builder
	for _, f := range s {
		fmt.Fprintln(&b, f)
	}
	return b.String()
}

// impairs reports whether a fault removes a node from quorums.
func (k Kind) impairs() bool { return k == KillNode || k == StopNode || k == Isolate || k == OneWay }

// nodeStart is about how long a node takes to answer after its start.
const nodeStart = 12 * time.Second

// longRun is the length from which a run certainly stops a process and a node for
// minutes.
const longRun = 8 * time.Minute

// NewSchedule returns random faults for a run of the given length. The same seed gives
// the same schedule. The last tenth of the run has no faults, so that the cluster can
// recover.
//
// A stop takes at most a quarter of the run and at most three minutes. A run of eight
// minutes has two stops of more than two minutes. For most of the time two nodes of three
// reach each other, because otherwise no operation would ever succeed.
func NewSchedule(seed uint64, length time.Duration, processes []string) Schedule {
	r := rand.New(rand.NewPCG(seed, 0))
	var s Schedule
	end := length * 9 / 10
	longest := min(length/4, 3*time.Minute)
	between := func(least, most time.Duration) time.Duration {
		return least + rand64(r, most-least)
	}
	// The certain stops are added first. Random faults that clash with them are skipped.
	if length >= longRun {
		process := Fault{Kind: StopProcess, Process: processes[r.IntN(len(processes))]}
		process.At, process.For = between(length/20, length/5), between(2*time.Minute, longest)
		node := Fault{Kind: StopNode, Node: r.IntN(Nodes)}
		node.At, node.For = between(length/2, length*3/5), between(2*time.Minute, longest)
		s = append(s, process, node)
	}
	for at := between(time.Second, 4*time.Second); at < end; at += between(1500*time.Millisecond, 4*time.Second) {
		f := Fault{At: at, Node: r.IntN(Nodes), Process: processes[r.IntN(len(processes))], Kind: draw(r)}
		f.To = (f.Node + 1 + r.IntN(Nodes-1)) % Nodes
		f.For = between(2*time.Second, 12*time.Second)
		f.Hold = r.IntN(2) == 0
		if f.Kind == StopNode || f.Kind == StopProcess || f.Kind == Isolate {
			if r.IntN(3) == 0 {
				f.For = between(f.For, max(longest, 2*f.For))
			}
		}
		switch f.Kind {
		case KillProcess:
			f.For = 0
		case Clock:
			f.By = between(200*time.Millisecond, 8*time.Second)
			if r.IntN(3) == 0 { // longer than any timeout of a request
				f.By = between(10*time.Second, 90*time.Second)
			}
			if r.IntN(2) == 0 {
				f.By = -f.By
			}
			f.By = f.By.Truncate(100 * time.Millisecond)
			f.For = between(5*time.Second, 20*time.Second)
		case Slow:
			f.By = between(20*time.Millisecond, 3*time.Second).Truncate(time.Millisecond)
		case Lossy:
			f.Share = 0.05 + 0.3*r.Float64()
		}
		f.For = min(f.For, end-at)
		// One of ten of such faults is kept, so that a run also has times without a
		// quorum.
		if f.Kind.impairs() && s.impaired(f) && r.IntN(10) != 0 {
			continue
		}
		if f.Kind != Isolate && f.Kind != OneWay && f.Kind != Clients {
			f.Hold = false
		}
		if s.clashes(f) {
			continue
		}
		s = append(s, f)
	}
	slices.SortStableFunc(s, func(a, b Fault) int { return cmp.Compare(a.At, b.At) })
	return s
}

// impaired reports whether another fault removes a node from quorums at some time of f.
func (s Schedule) impaired(f Fault) bool {
	return slices.ContainsFunc(s, func(o Fault) bool { return o.Kind.impairs() && f.At < o.back() && o.At < f.back() })
}

// back returns when the node or process works again.
func (f Fault) back() time.Duration {
	if f.Kind == KillNode {
		return f.At + f.For + nodeStart
	}
	return f.At + f.For
}

// rand64 returns a random duration below a limit.
func rand64(r *rand.Rand, below time.Duration) time.Duration {
	return time.Duration(r.Int64N(max(int64(below), 1)))
}

// draw returns a random kind. Three of four are faults of nodes and the network: a
// garbage collection waits for each process that is gone, and a run with many of them
// would collect nothing.
func draw(r *rand.Rand) Kind {
	nodes := []Kind{KillNode, StopNode, Clock, Clock, Isolate, OneWay, Slow, Lossy, Clients}
	switch r.IntN(8) {
	case 0:
		return KillProcess
	case 1:
		return StopProcess
	default:
		return nodes[r.IntN(len(nodes))]
	}
}

// clashes reports whether another fault changes the same process, node or gates at the
// same time. The end of one would otherwise end the other one as well.
func (s Schedule) clashes(f Fault) bool {
	for _, o := range s {
		if f.At > o.At+o.For+time.Second || o.At > f.At+f.For+time.Second {
			continue
		}
		switch f.Kind {
		case KillProcess, StopProcess:
			if (o.Kind == KillProcess || o.Kind == StopProcess) && o.Process == f.Process {
				return true
			}
		case Isolate, OneWay, Slow, Lossy: // they set the same gates
			if o.Kind == Isolate || o.Kind == OneWay || o.Kind == Slow || o.Kind == Lossy {
				return true
			}
		case KillNode, StopNode:
			if (o.Kind == KillNode || o.Kind == StopNode) && o.Node == f.Node {
				return true
			}
		default:
			if o.Kind == f.Kind && o.Node == f.Node {
				return true
			}
		}
	}
	return false
}
