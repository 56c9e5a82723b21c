package spill

import (
	"testing"
	"time"
)

// A loose job uses a sample again in its next epoch after an early use, and may use what is in reach at once. A list
// of all its uses gives the same, for any reports in any order.
func TestLooseJobs(t *testing.T) {
	r := testRand(t)
	for range 200 {
		rows, epochs := 1+r.Int64N(300), 1+r.Int64N(4)
		f := &Future{}
		j, err := f.Add(JobOptions{Dataset: 1, Order: ascending(rows), Epochs: epochs, RowTime: time.Millisecond}, 0)
		if err != nil {
			t.Fatal(err)
		}
		reach := r.Int64N(rows + 100)
		j.SetReach(reach)
		used := make([]bool, rows*epochs)
		for served := int64(0); served < rows*epochs; {
			for range r.IntN(10) { // ahead of its turn, in its epoch
				if row := served + r.Int64N(max(reach, 1)); reach > 0 && row < (served/rows+1)*rows {
					used[row] = true
					j.Use(row/rows, row%rows)
				}
			}
			for range 10 {
				pos := r.Int64N(rows)
				want, may := int64(-1), served/rows*rows+rows // the next use, and the end of the epoch that it may move in
				for epoch := served / rows; epoch < min(served/rows+2, epochs); epoch++ {
					if row := epoch*rows + pos; row >= served && (epoch > served/rows || !used[row]) {
						want = row - served
						if row < may {
							want = max(want-reach, 0)
						}
						break
					}
				}
				if got, ok := j.RowsUntil(pos); ok != (want >= 0) || ok && got != want {
					t.Fatalf("%d rows of %d served, reach %d: position %d is used in %d, %t; want %d", served, rows, reach, pos,
						got, ok, want)
				}
				if row := served/rows*rows + pos; row >= served && row < served+reach && j.Used(row) != used[row] {
					t.Fatalf("row %d used: %t, want %t", row, j.Used(row), used[row])
				}
			}
			served += 1 + r.Int64N(min(rows, 70))
			j.Advance(served/rows, served%rows, Time(served)*1e6)
		}
	}
}

// A horizon is computed anew when jobs have advanced, come or gone.
func TestHorizonsAreKept(t *testing.T) {
	f := &Future{}
	a, err := f.Add(JobOptions{Dataset: 1, Order: ascending(1000), RowBytes: 100, Epochs: 2}, 0)
	if err != nil {
		t.Fatal(err)
	}
	one := f.Horizon(50_000)
	if again := f.Horizon(50_000); again != one || one == 0 {
		t.Errorf("%g, then %g", one, again)
	}
	if other := f.Horizon(20_000); other >= one {
		t.Errorf("with less room %g, with more %g", other, one)
	}
	b, err := f.Add(JobOptions{Dataset: 2, Order: ascending(1000), RowBytes: 100}, 0)
	if err != nil {
		t.Fatal(err)
	}
	if two := f.Horizon(50_000); two == one {
		t.Errorf("with another job it is still %g", two)
	}
	f.Remove(b)
	if again := f.Horizon(50_000); again != one {
		t.Errorf("without the other job it is %g, and was %g", again, one)
	}
	a.Advance(2, 0, 1e9) // it has ended
	if h := f.Horizon(50_000); h != 0 {
		t.Errorf("without a job that goes on it is %g", h)
	}
}
