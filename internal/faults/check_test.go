package faults

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// story is a made-up history. Times are small numbers; each call makes an operation.
type story struct {
	events []Event
	ops    int64
}

// op adds an operation between two times; end 0 for one that has no end.
func (s *story) op(process, do string, invoke, end int64, how string, e Event) {
	s.ops++
	e.Process, e.Op, e.Do = process, s.ops, do
	if e.Dataset == "" && do != Collect && do != Left {
		e.Dataset = "d"
	}
	first := e
	first.Type, first.At = Invoke, invoke
	if do == Commit {
		first.Number = 0
	}
	s.events = append(s.events, first)
	if end != 0 {
		e.Type, e.At = how, end
		s.events = append(s.events, e)
	}
}

// commit is one of an import that has the number's name, unless another is said.
func (s *story) commit(invoke, end, number, parent int64) {
	s.op("importer", Commit, invoke, end, OK, Event{Number: number, Parent: parent,
		Import: fmt.Sprint("import", number), Digest: fmt.Sprint("digest", number)})
}

func (s *story) read(invoke, end, number int64) {
	s.readBy("reader", invoke, end, number)
}

func (s *story) readBy(process string, invoke, end, number int64) {
	s.op(process, Read, invoke, end, OK, Event{Number: number, Import: fmt.Sprint("import", number),
		Digest: fmt.Sprint("digest", number)})
}

func (s *story) absent(invoke, end, number int64) {
	s.op("reader", Read, invoke, end, OK, Event{Number: number, Absent: true})
}

func (s *story) list(invoke, end int64, numbers ...int64) {
	s.op("reader", List, invoke, end, OK, Event{Numbers: numbers})
}

func (s *story) drop(invoke, end int64, how string, number int64) {
	s.op("dropper", Drop, invoke, end, how, Event{Number: number})
}

func (s *story) tag(invoke, end int64, how string, number int64) {
	s.op("tagger", Tag, invoke, end, how, Event{Number: number, Tag: "prod"})
}

func (s *story) untag(invoke, end int64) { s.op("tagger", Untag, invoke, end, OK, Event{Tag: "prod"}) }

func (s *story) tagged(invoke, end, number int64) {
	s.op("reader", Tagged, invoke, end, OK, Event{Number: number, Tag: "prod"})
}

func (s *story) healed(at int64) {
	s.events = append(s.events, Event{Process: "final", Do: Healed, Type: Invoke, At: at})
}

// TestCheckFinds: each kind of anomaly is found, alone, and the same history without
// what makes it one has none.
func TestCheckFinds(t *testing.T) {
	for _, tt := range []struct {
		name string
		want string // kind
		bad  func(s *story)
		good func(s *story)
	}{
		{
			"a commit that is not there", LostCommit,
			func(s *story) { s.commit(1, 2, 1, 0); s.absent(3, 4, 1) },
			func(s *story) { s.commit(1, 3, 1, 0); s.absent(2, 4, 1) },
		}, {
			"a commit that is not listed", LostCommit,
			func(s *story) { s.commit(1, 2, 1, 0); s.list(3, 4) },
			func(s *story) { s.commit(1, 2, 1, 0); s.drop(3, 0, Info, 1); s.list(4, 5) },
		}, {
			"what one has seen is not there for another", LostCommit,
			func(s *story) { s.commit(1, 0, 1, 0); s.read(2, 3, 1); s.list(4, 5) },
			func(s *story) { s.commit(1, 0, 1, 0); s.list(2, 3); s.read(4, 5, 1) },
		}, {
			"a drop that has failed has dropped", LostCommit,
			func(s *story) { s.commit(1, 2, 1, 0); s.drop(3, 4, Fail, 1); s.absent(5, 6, 1) },
			func(s *story) { s.commit(1, 2, 1, 0); s.drop(3, 4, OK, 1); s.absent(5, 6, 1) },
		}, {
			"a blob is missing", Torn,
			func(s *story) {
				s.commit(1, 2, 1, 0)
				s.op("reader", Read, 3, 4, OK, Event{Number: 1, Import: "import1", Damage: Missing})
			},
			func(s *story) {
				s.commit(1, 2, 1, 0)
				s.op("reader", Read, 3, 6, OK, Event{Number: 1, Import: "import1", Damage: Missing})
				s.drop(4, 5, OK, 1)
			},
		}, {
			"its record is missing", Torn,
			func(s *story) {
				s.commit(1, 2, 1, 0)
				s.op("reader", Read, 3, 4, Info, Event{Number: 1, Damage: Missing})
			},
			func(s *story) { s.commit(1, 2, 1, 0); s.op("reader", Read, 3, 4, Info, Event{Number: 1}) },
		}, {
			"wrong bytes, though it was dropped", Torn,
			func(s *story) {
				s.commit(1, 2, 1, 0)
				s.drop(3, 0, Info, 1)
				s.op("reader", Read, 4, 5, OK, Event{Number: 1, Import: "import1", Damage: Wrong})
			},
			func(s *story) { s.commit(1, 2, 1, 0); s.drop(3, 0, Info, 1); s.read(4, 5, 1) },
		}, {
			"other blobs than were imported", Torn,
			func(s *story) {
				s.commit(1, 2, 1, 0)
				s.op("reader", Read, 3, 4, OK, Event{Number: 1, Import: "import1", Digest: "digest2"})
			},
			func(s *story) { s.commit(1, 2, 1, 0); s.read(3, 4, 1) },
		}, {
			"a collection finds damage", Torn,
			func(s *story) { s.op("collector", Collect, 1, 2, Info, Event{Damage: Missing}) },
			func(s *story) { s.op("collector", Collect, 1, 2, Info, Event{}) },
		}, {
			"what was put is not there at the commit", Torn,
			func(s *story) { s.op("importer", Commit, 1, 2, Fail, Event{Import: "x", Damage: Missing}) },
			func(s *story) { s.op("importer", Commit, 1, 2, Fail, Event{Import: "x"}) },
		}, {
			"two commits with one number", Doubled,
			func(s *story) {
				s.commit(1, 4, 1, 0)
				s.op("importer-2", Commit, 2, 3, OK, Event{Number: 1, Import: "other", Digest: "other"})
			},
			func(s *story) {
				s.commit(1, 4, 1, 0)
				s.op("importer-2", Commit, 2, 5, OK, Event{Number: 2, Parent: 1, Import: "other", Digest: "other"})
			},
		}, {
			"an import twice", Doubled,
			func(s *story) {
				s.commit(1, 2, 1, 0)
				s.op("reader", Read, 3, 4, OK, Event{Number: 2, Import: "import1", Digest: "digest1"})
			},
			func(s *story) { s.commit(1, 2, 1, 0); s.read(3, 4, 1); s.read(5, 6, 1) },
		}, {
			"a number that was known is given out again", Reordered,
			func(s *story) {
				s.commit(1, 0, 1, 0)
				s.list(2, 3, 1)
				s.drop(3, 4, OK, 1)
				s.op("importer-2", Commit, 5, 6, OK, Event{Number: 1, Import: "other", Digest: "other"})
			},
			func(s *story) { s.commit(1, 0, 1, 0); s.list(2, 3, 1); s.drop(3, 4, OK, 1); s.commit(5, 6, 2, 0) },
		}, {
			"a smaller number later", Reordered,
			func(s *story) { s.commit(1, 2, 2, 0); s.commit(3, 4, 1, 0) },
			func(s *story) { s.commit(1, 4, 2, 1); s.commit(2, 3, 1, 0) },
		}, {
			"a parent that was not the newest", LostUpdate,
			func(s *story) { s.commit(1, 2, 1, 0); s.commit(3, 4, 2, 1); s.commit(5, 6, 3, 1) },
			func(s *story) {
				s.commit(1, 2, 1, 0)
				s.commit(3, 4, 2, 1)
				s.drop(4, 7, OK, 2)
				s.commit(5, 6, 3, 1)
			},
		}, {
			"two commits of one parent at the same time", LostUpdate,
			func(s *story) { s.commit(1, 2, 1, 0); s.commit(3, 5, 2, 1); s.commit(4, 6, 3, 1) },
			func(s *story) { s.commit(1, 2, 1, 0); s.commit(3, 5, 2, 1); s.commit(4, 6, 3, 2) },
		}, {
			"an import that was never made", Phantom,
			func(s *story) { s.read(1, 2, 1) },
			func(s *story) { s.commit(1, 0, 1, 0); s.read(2, 3, 1) },
		}, {
			"a commit that has failed", Phantom,
			func(s *story) {
				s.op("importer", Commit, 1, 2, Fail, Event{Import: "import1", Digest: "digest1"})
				s.read(3, 4, 1)
			},
			func(s *story) {
				s.op("importer", Commit, 1, 2, Info, Event{Import: "import1", Digest: "digest1"})
				s.read(3, 4, 1)
			},
		}, {
			"seen before it was committed", Phantom,
			func(s *story) { s.read(1, 2, 1); s.commit(3, 4, 1, 0) },
			func(s *story) { s.read(1, 4, 1); s.commit(2, 3, 1, 0) },
		}, {
			"dropped and read", Resurrected,
			func(s *story) { s.commit(1, 2, 1, 0); s.drop(3, 4, OK, 1); s.read(5, 6, 1) },
			func(s *story) { s.commit(1, 2, 1, 0); s.drop(3, 5, OK, 1); s.read(4, 6, 1) },
		}, {
			"gone and listed", Resurrected,
			func(s *story) {
				s.commit(1, 2, 1, 0)
				s.drop(3, 0, Info, 1)
				s.absent(4, 5, 1)
				s.list(6, 7, 1)
			},
			func(s *story) {
				s.commit(1, 2, 1, 0)
				s.drop(3, 0, Info, 1)
				s.list(4, 5, 1)
				s.absent(6, 7, 1)
			},
		}, {
			"a tag that was moved before", StaleTag,
			func(s *story) {
				s.commit(1, 2, 1, 0)
				s.commit(3, 4, 2, 1)
				s.tag(5, 6, OK, 1)
				s.tag(7, 8, OK, 2)
				s.tagged(9, 10, 1)
			},
			func(s *story) {
				s.commit(1, 2, 1, 0)
				s.commit(3, 4, 2, 1)
				s.tag(5, 6, OK, 1)
				s.tag(7, 9, OK, 2)
				s.tagged(8, 10, 1)
			},
		}, {
			"a tag that is not there yet is gone again", StaleTag,
			func(s *story) { s.commit(1, 2, 1, 0); s.tag(3, 4, OK, 1); s.tagged(5, 6, 0) },
			func(s *story) { s.commit(1, 2, 1, 0); s.tag(3, 4, OK, 1); s.untag(5, 0); s.tagged(6, 7, 0) },
		}, {
			"a tag that was never set", StaleTag,
			func(s *story) { s.commit(1, 2, 1, 0); s.tag(3, 4, Fail, 1); s.tagged(5, 6, 1) },
			func(s *story) { s.commit(1, 2, 1, 0); s.tag(3, 4, Info, 1); s.tagged(5, 6, 1) },
		}, {
			"a tag that comes back", StaleTag,
			func(s *story) {
				s.commit(1, 2, 1, 0)
				s.commit(3, 4, 2, 1)
				s.tag(5, 0, Info, 1)
				s.tag(6, 0, Info, 2)
				s.tagged(7, 8, 1)
				s.tagged(9, 10, 2)
				s.tagged(11, 12, 1)
			},
			func(s *story) {
				s.commit(1, 2, 1, 0)
				s.commit(3, 4, 2, 1)
				s.tag(5, 0, Info, 1)
				s.tag(6, 0, Info, 2)
				s.tagged(7, 8, 1)
				s.tagged(9, 10, 1)
				s.tagged(11, 12, 2)
			},
		}, {
			"a tag within another's time", StaleTag,
			func(s *story) {
				s.commit(1, 2, 1, 0)
				s.commit(3, 4, 2, 1)
				s.tag(5, 0, Info, 1)
				s.tagged(6, 7, 1)
				s.tag(8, 9, OK, 2)
				s.tagged(10, 11, 1)
			},
			func(s *story) {
				s.commit(1, 2, 1, 0)
				s.commit(3, 4, 2, 1)
				s.tag(5, 0, Info, 1)
				s.tagged(6, 7, 1)
				s.tag(8, 11, OK, 2)
				s.tagged(9, 10, 1)
			},
		}, {
			"removed and still there", StaleTag,
			func(s *story) {
				s.commit(1, 2, 1, 0)
				s.tag(3, 0, Info, 1)
				s.tagged(4, 5, 1)
				s.untag(6, 7)
				s.tagged(8, 9, 1)
			},
			func(s *story) {
				s.commit(1, 2, 1, 0)
				s.tag(3, 0, Info, 1)
				s.tagged(4, 5, 1)
				s.untag(6, 9)
				s.tagged(7, 8, 1)
			},
		}, {
			"dropped, and had a tag", TaggedDropped,
			func(s *story) { s.commit(1, 2, 1, 0); s.tag(3, 4, OK, 1); s.drop(5, 6, OK, 1) },
			func(s *story) { s.commit(1, 2, 1, 0); s.tag(3, 4, OK, 1); s.untag(5, 0); s.drop(6, 7, OK, 1) },
		}, {
			"a tag for what was dropped", TaggedDropped,
			func(s *story) { s.commit(1, 2, 1, 0); s.drop(3, 4, OK, 1); s.tag(5, 6, OK, 1) },
			func(s *story) {
				s.commit(1, 2, 1, 0)
				s.drop(3, 4, OK, 1)
				s.op("tagger", Tag, 5, 6, Fail, Event{Number: 1, Tag: "prod", Absent: true})
			},
		}, {
			"bytes without a reference", Garbage,
			func(s *story) { s.op("final", Left, 1, 2, OK, Event{Count: 1}) },
			func(s *story) { s.op("final", Left, 1, 2, OK, Event{}) },
		}, {
			"only one has read it in the end", Unread,
			func(s *story) { s.commit(1, 2, 1, 0); s.read(3, 4, 1); s.healed(5); s.readBy("a", 6, 7, 1) },
			func(s *story) { s.commit(1, 2, 1, 0); s.healed(5); s.readBy("a", 6, 7, 1); s.readBy("b", 6, 7, 1) },
		}, {
			"an end without a beginning", BadHistory,
			func(s *story) { s.commit(1, 2, 1, 0); s.events = s.events[1:] },
			func(s *story) { s.commit(1, 2, 1, 0) },
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var bad, good story
			tt.bad(&bad)
			tt.good(&good)
			found := check(bad)
			if !slices.ContainsFunc(found, func(a Anomaly) bool { return a.Kind == tt.want }) {
				t.Errorf("found %v, want a %s", found, tt.want)
			}
			if found := check(good); len(found) > 0 {
				t.Errorf("found in what is right: %v", found)
			}
		})
	}
}

// check is Check of a story's events in the order of time, twice: it says the same.
func check(s story) []Anomaly {
	slices.SortStableFunc(s.events, func(a, b Event) int { return int(a.At - b.At) })
	first, _ := Check(s.events)
	second, _ := Check(slices.Clone(s.events))
	if !slices.Equal(first, second) {
		return append(first, Anomaly{Kind: "not deterministic"})
	}
	return first
}

// TestDatasetsApart: what happens to one dataset says nothing of another.
func TestDatasetsApart(t *testing.T) {
	var s story
	s.op("importer", Commit, 1, 2, OK, Event{Dataset: "a", Number: 1, Import: "x", Digest: "x"})
	s.op("importer", Commit, 3, 4, OK, Event{Dataset: "b", Number: 1, Import: "y", Digest: "y"})
	s.op("dropper", Drop, 5, 6, OK, Event{Dataset: "a", Number: 1})
	s.op("reader", Read, 7, 8, OK, Event{Dataset: "b", Number: 1, Import: "y", Digest: "y"})
	s.op("reader", List, 7, 8, OK, Event{Dataset: "a"})
	if found := check(s); len(found) > 0 {
		t.Errorf("found %v", found)
	}
}

// TestStats: a run can see that it has done something.
func TestStats(t *testing.T) {
	var s story
	s.commit(1, 2, 1, 0)
	s.commit(3, 0, 2, 1)
	s.read(3, 4, 1)
	s.absent(3, 4, 7)
	_, stats := Check(s.events)
	want := "7 events, 1 snapshots, 1 read whole; commit info 1, commit ok 1, read absent 1, read ok 1"
	if stats.String() != want {
		t.Errorf("got  %s\nwant %s", stats, want)
	}
	if a := (Anomaly{Kind: Torn, Dataset: "d", What: "x"}).String(); !strings.Contains(a, "torn snapshot: d: x") {
		t.Error(a)
	}
}
