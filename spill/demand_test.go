package spill

import (
	"testing"
	"time"
)

func TestJobsSayWhereTheyStand(t *testing.T) {
	f := &Future{}
	a, err := f.Add(JobOptions{Dataset: 3, Order: ascending(100), Epochs: 2, At: 10, RowBytes: 7, Positions: 500}, 0)
	if err != nil {
		t.Fatal(err)
	}
	b, err := f.Add(JobOptions{Dataset: 4, Order: ascending(50), RowTime: time.Second}, 0)
	if err != nil {
		t.Fatal(err)
	}
	a.Advance(1, 5, 95e9)
	want := []JobState{
		{Job: a, Order: ascending(100), Dataset: 3, Positions: 500, Rows: 100, Served: 105, Left: 95,
			RowTime: time.Second, RowBytes: 7},
		{Job: b, Order: ascending(50), Dataset: 4, Positions: 50, Rows: 50, Left: -1, RowTime: time.Second},
	}
	got := f.Jobs()
	if len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("%+v, want %+v", got, want)
	}
	a.Advance(2, 0, 200e9)
	f.Remove(b)
	if got = f.Jobs(); len(got) != 1 || got[0].Left != 0 {
		t.Errorf("%+v, want one job that has come to its end", got)
	}
}

func TestDemandIsADifference(t *testing.T) {
	a := Demand{Waited: 5, Streamed: 9, StoreBytes: 100, SpillBytes: 50}
	if got, want := a.Sub(Demand{2, 3, 40, 10}), (Demand{3, 6, 60, 40}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}
