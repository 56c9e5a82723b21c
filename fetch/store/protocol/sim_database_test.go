package protocol

import (
	"maps"
	"slices"
	"time"

	"bowstring/schema"
)

const (
	nodes = 3
	// answerWithin is how long a client waits for an answer,
	answerWithin = 5 * time.Second
	// rowLapses after how long a member's row is gone,
	rowLapses = 40 * time.Second
	// and late how long a message can be on its way.
	late = 4 * time.Minute
)

// faults are the faults of a run: each happens once in this many times, 0 for never.
type faults struct {
	lose     int // messages
	silence  int // answers
	slow     int // calls that take long, and are answered
	delay    int // messages that are late, very
	double   int // messages that arrive again
	accept   int // swaps that are accepted, but not answered
	lag      int // writes that the third node hears of with delay
	suspends int // the most of one process
	kills    int
	clocks   bool // differ and step
	raise    bool // rows come back from the dead

	// Those that some calls have and others not, so that what is rare happens often.
	deletions int // deletions that are very late
	// in calls of this kind a collection is suspended until another has ended, before which no put ends
	stall   string
	bytes   int  // bytes that are lost, after which an ingest stays open
	touches int  // of puts that are slow
	states  int  // answers about the state of collections that are late
	scans   int  // that are slow
	patient bool // callers wait long for an answer
	few     bool // blobs there are, so that the same ones are put again
}

// patience is how long a client waits for an answer.
func (f faults) patience() time.Duration {
	if f.patient {
		return 9 * answerWithin
	}
	return answerWithin
}

// blobs is how many different ones are imported.
func (f faults) blobs() int {
	if f.few {
		return payloads / 3
	}
	return payloads
}

// rows is how many a chunk has at most.
func (f faults) rows() int {
	if f.stall != "" {
		return 1
	}
	return 3
}

// cell is what a node has of a blob: when each column was written, and up to
// which epoch it was deleted.
type cell struct {
	touched, touchedGone Epoch
	size, sizeGone       Epoch
	bytes                [2]Epoch
	bytesGone            Epoch
}

// simPartition is a partition, with a swap that was accepted and not learned.
type simPartition struct {
	Partition
	pending *Partition
}

// replicas is the database of a simulation: linearizable partitions, and blobs
// on three nodes that order what they hear of by epoch alone.
type replicas struct {
	w          *world
	partitions map[string]*simPartition
	members    map[string]*simMember
	lapses     map[string]int
	nodes      [nodes]map[schema.Key]*cell
	content    map[schema.Key][]byte // of all blobs that were ever written
	segments   map[schema.Key]bool   // those that are there, in a bucket
	collecting control               // the state of collections as it is
}

type simMember struct {
	Member
	until time.Duration
}

func newReplicas(w *world) *replicas {
	r := &replicas{
		w: w, partitions: map[string]*simPartition{}, members: map[string]*simMember{}, lapses: map[string]int{},
		content: map[schema.Key][]byte{}, segments: map[schema.Key]bool{},
	}
	for i := range r.nodes {
		r.nodes[i] = map[schema.Key]*cell{}
	}
	return r
}

func (r *replicas) partition(name string) *simPartition {
	if r.partitions[name] == nil {
		r.partitions[name] = &simPartition{}
	}
	return r.partitions[name]
}

// settle decides a swap that was accepted and not learned: it is made, or can
// never be.
func (r *replicas) settle(name string) *simPartition {
	p := r.partition(name)
	if next := p.pending; next != nil {
		p.pending = nil
		if !r.w.chance(4) {
			r.set(name, *next)
		}
	}
	return p
}

func (r *replicas) set(name string, p Partition) {
	r.partition(name).Partition = p
	if name == Control {
		r.collecting, _ = decodeControl(p)
	}
	r.w.note(name, int(p.Version))
	r.w.oracle.changed(name, p)
}

func (r *replicas) swap(name string, version int64, change Change) error {
	p := r.settle(name)
	if p.Version != version {
		return ErrMoved
	}
	next := change.apply(p.Partition)
	if r.w.chance(r.w.faults.accept) {
		r.w.say(nil, "a swap of %q for version %d is accepted and not learned", name, version)
		p.pending = &next
		return ErrUncertain
	}
	r.set(name, next)
	return nil
}

func (r *replicas) cell(node int, key schema.Key) *cell {
	if r.nodes[node][key] == nil {
		r.nodes[node][key] = &cell{}
	}
	return r.nodes[node][key]
}

// merged is a blob as several nodes together know it.
func (r *replicas) merged(key schema.Key, among ...int) cell {
	var m cell
	for _, node := range among {
		c := r.nodes[node][key]
		if c == nil {
			continue
		}
		m.touched, m.touchedGone = max(m.touched, c.touched), max(m.touchedGone, c.touchedGone)
		m.size, m.sizeGone = max(m.size, c.size), max(m.sizeGone, c.sizeGone)
		m.bytesGone = max(m.bytesGone, c.bytesGone)
		for i := range m.bytes {
			m.bytes[i] = max(m.bytes[i], c.bytes[i])
		}
	}
	return m
}

// repaired returns a blob as a quorum knows it. Afterwards every replica of the quorum
// knows as much.
func (r *replicas) repaired(key schema.Key) cell {
	among := r.two()
	m := r.merged(key, among...)
	if m != (cell{}) {
		for _, node := range among {
			*r.cell(node, key) = m
		}
	}
	return m
}

func (c cell) whole() bool { return c.bytes[0] > c.bytesGone && c.bytes[1] > c.bytesGone }

func (r *replicas) row(key schema.Key, c cell) (BlobRow, bool) {
	row := BlobRow{Key: key, Size: -1}
	if c.size > c.sizeGone {
		row.Size, row.Stored, row.Touched = int64(len(r.content[key])), c.size, c.size
	}
	if c.touched > c.touchedGone {
		row.Touched = max(row.Touched, c.touched)
	}
	return row, row.Touched > 0
}

// raise brings a deleted row back, without its bytes, as databases do that have
// forgotten of a deletion before all nodes have heard of it.
func (r *replicas) raise() {
	for _, key := range r.keys() {
		if c := r.merged(key, 0, 1, 2); c.size > 0 && c.size <= c.sizeGone && r.w.chance(2) {
			r.w.say(nil, "the row of %s comes back", key.String()[:8])
			for node := range nodes {
				c := r.cell(node, key)
				c.sizeGone, c.touchedGone = 0, 0
			}
		}
	}
}

// repair has all nodes know what any of them does.
func (r *replicas) repair() {
	for _, key := range r.keys() {
		m := r.merged(key, 0, 1, 2)
		for node := range nodes {
			*r.cell(node, key) = m
		}
	}
}

// keys lists all blobs that any node has heard of.
func (r *replicas) keys() []schema.Key {
	all := map[schema.Key]bool{}
	for _, node := range r.nodes {
		for key := range node {
			all[key] = true
		}
	}
	return slices.SortedFunc(maps.Keys(all), func(a, b schema.Key) int { return slices.Compare(a[:], b[:]) })
}

// two draws the nodes that answer a read of a quorum first.
func (r *replicas) two() []int {
	none := r.w.rng.IntN(nodes)
	return slices.DeleteFunc([]int{0, 1, 2}, func(node int) bool { return node == none })
}
