package main

import (
	"encoding/json"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/cmd/bowstring/command"
)

// received is what a stream reports to the meter for a batch of one column of positions.
func received(t *testing.T, m *meter, epoch uint64, wait waits, positions ...int64) {
	t.Helper()
	b := array.NewInt64Builder(memory.DefaultAllocator)
	defer b.Release()
	b.AppendValues(positions, nil)
	column := b.NewArray()
	defer column.Release()
	m.batch(batchAbout{Epoch: epoch, Wait: wait}, int64(len(positions)), 1e6*int64(len(positions)), 0)
	if err := m.positions(epoch, column); err != nil {
		t.Fatal(err)
	}
}

func TestMeterRates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMeter(20, 1, stats{})
		for i := range 10 {
			time.Sleep(time.Second) // fake
			received(t, m, 0, waits{Store: 3, Consumer: 1}, int64(2*i), int64(2*i+1))
			s := m.sample()
			if s.MBPerSecond != 2 || s.RowsPerSec != 2 || s.Wait != (shares{Store: 0.75, Consumer: 0.25}) {
				t.Errorf("second %d: %+v", i, s)
			}
		}
		m.end()
		s := m.summary(stats{}, true)
		if s.MBPerSecond != 2 || s.SteadyMB == nil || *s.SteadyMB != 2 || s.Seconds != 10 || s.FirstBatch != 1 {
			t.Errorf("%+v", s)
		}
		if s.Once == nil || !*s.Once || len(s.EpochRows) != 1 || s.EpochRows[0] != 20 {
			t.Errorf("%+v", s)
		}
	})
}

func TestMeterFindsWhatIsTwiceAndMissing(t *testing.T) {
	m := newMeter(3, 3, stats{})
	received(t, m, 5, waits{}, 100_000, 1, 2)
	received(t, m, 6, waits{}, 1, 2)
	received(t, m, 6, waits{}, 1)
	m.end()
	s := m.summary(stats{}, true)
	// In epoch 6 row 1 came twice and one never; epoch 7 did not come.
	if s.Once == nil || *s.Once || s.Duplicates != 1 || s.Missing != 4 {
		t.Errorf("%+v", s)
	}
	if text := s.text(); !strings.Contains(text, "NO: 1 came twice, 4 are missing") {
		t.Error(text)
	}
	if s := m.summary(stats{}, false); s.Missing != 0 || s.Duplicates != 1 {
		t.Errorf("stopped before the end: %+v", s)
	}
}

func TestSeenRows(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	var seen seenRows
	want, twice := map[int64]bool{}, int64(0)
	for range 10_000 {
		p := rng.Int64N(1 << rng.IntN(20))
		if want[p] {
			twice++
		}
		want[p] = true
		seen.add(p)
	}
	if seen.len() != int64(len(want)) || seen.twice != twice {
		t.Errorf("got %d and %d twice, want %d and %d", seen.len(), seen.twice, len(want), twice)
	}
}

// An older server does not know all figures, a newer one knows more.
func TestStatsAreReadLeniently(t *testing.T) {
	for text, want := range map[string]int64{
		`{"engine":{"reads":7}}`: 0,
		`{"engine":{"hedges":3,"windows":[{"window_used":1,"window_limit":5,"new":[]}]},"other":{}}`: 3,
	} {
		var st stats
		if err := json.Unmarshal([]byte(text), &st); err != nil || st.Engine.Hedges != want {
			t.Errorf("%s: got %+v, %v", text, st, err)
		}
	}
	var st stats
	st.Engine.Windows = append(st.Engine.Windows, struct {
		Used  int64 `json:"window_used"`
		Limit int64 `json:"window_limit"`
	}{1, 5})
	if used, limit := st.window(); used != 1 || limit != 5 {
		t.Errorf("window %d of %d", used, limit)
	}
}

func TestView(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out, drawn strings.Builder
		app := &command.App{Stdout: &out, Stderr: &drawn, Log: slog.New(slog.DiscardHandler)}
		m := newMeter(4, 1, stats{})
		v := newView(app, m.wanted())
		time.Sleep(time.Second) // fake
		received(t, m, 0, waits{Store: 1, Window: 1}, 0, 1)
		var st stats
		if err := json.Unmarshal([]byte(`{"engine":{"reads_in_flight":12,"bytes_in_flight":1048576,"in_flight_limit":4194304,
			"latency":{"p50_us":1500,"p95_us":2000,"p99_us":9000},"hedges":2,"window_used":1024,"window_limit":2048}}`), &st); err != nil {
			t.Fatal(err)
		}
		m.setStats(st)
		v.report(m.sample())
		for _, want := range []string{
			"2.0 MB/s", "2/4", "batch 1 (epoch 0, step 0), 2 rows/s",
			"store 50%, spill 0%, window 50%, encode 0%, consumer 0%",
			"reads: 12 in flight, 1.0 MiB of 4.0 MiB; p50 1.5, p95 2.0, p99 9.0 ms", "hedges 2 (won 0)",
			"window 1.0 KiB of 2.0 KiB",
		} {
			if !strings.Contains(drawn.String(), want) {
				t.Errorf("%q lacks %q", drawn.String(), want)
			}
		}
		m.end()
		if err := v.finish(m.summary(st, false)); err != nil {
			t.Error(err)
		}
		for _, want := range []string{"rate          2.0 MB/s, 2 rows/s\n",
			"exactly once  no row came twice; stopped before the end\n"} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%q lacks %q", out.String(), want)
			}
		}
	})
}
