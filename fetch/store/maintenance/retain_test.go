package maintenance_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"bowstring/fetch/store"
	"bowstring/fetch/store/local"
	"bowstring/fetch/store/maintenance"
	"bowstring/schema"
)

func TestRetain(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "store"))
	now := time.Date(2030, 1, 31, 0, 0, 0, 0, time.UTC)
	add := func(dataset string, number int64, days int) {
		in, err := s.Begin(t.Context(), dataset)
		must(t, err)
		defer func() { must(t, in.Close()) }()
		like, err := s.Snapshot(t.Context(), "like", 1)
		must(t, err)
		snap := *like
		snap.Dataset, snap.Number, snap.Parent, snap.Created = dataset, number, number-1, now.AddDate(0, 0, -days)
		must(t, in.Restore(t.Context(), snap))
	}
	commit(t, s, "like", blobs(1, 3))
	for number := range int64(6) {
		add("d", number+1, 60-10*int(number))
	}
	add("e", 1, 1000)
	for name, number := range map[string]int64{"prod": 2, "also": 2, "new": 6} {
		must(t, s.Tag(t.Context(), "d", name, number))
	}
	day := 24 * time.Hour
	for _, tt := range []struct {
		rules maintenance.Retention
		want  string // what is dropped
	}{
		{maintenance.Retention{Last: 6}, ""},
		{maintenance.Retention{Last: 1}, "d@1 d@3 d@4 d@5"},
		{maintenance.Retention{Last: 3}, "d@1 d@3"},
		{maintenance.Retention{Within: 30 * day}, "d@1 d@3"},
		{maintenance.Retention{Within: 31 * day, Last: 5}, "d@1"},
		{maintenance.Retention{Within: day}, "d@1 d@3 d@4 d@5"},
	} {
		tt.rules.Now, tt.rules.DryRun = now, true
		fates, err := maintenance.Retain(t.Context(), s, []string{"d", "e"}, tt.rules)
		must(t, err)
		var dropped []string
		for _, f := range fates {
			if f.Dropped {
				dropped = append(dropped, fmt.Sprintf("%s@%d", f.Dataset, f.Snapshot))
			}
			if f.Dropped == (f.Why != "") {
				t.Errorf("%+v", f)
			}
			if f.Snapshot == 2 && tt.rules.Last < 5 && f.Why != "tagged also, prod" {
				t.Errorf("the tagged one stays as it is %q", f.Why)
			}
		}
		if got := strings.Join(dropped, " "); got != tt.want || len(fates) != 7 {
			t.Errorf("%+v: dropped %q of %d, want %q", tt.rules, got, len(fates), tt.want)
		}
	}
	if snaps, err := maintenance.Snapshots(t.Context(), s,
		[]maintenance.Name{{Dataset: "d"}}); err != nil || len(snaps) != 6 {
		t.Errorf("after dry runs there are %d, %v", len(snaps), err)
	}
	_, err := maintenance.Retain(t.Context(), s, nil, maintenance.Retention{Last: 1, Now: now})
	must(t, err)
	list, err := s.Datasets(t.Context())
	must(t, err)
	left := map[string][]int64{}
	for _, d := range list {
		left[d.Name] = d.Snapshots
	}
	if want := map[string][]int64{"d": {2, 6}, "e": {1}, "like": {1}}; !reflect.DeepEqual(left, want) {
		t.Errorf("left are %v, want %v", left, want)
	}
	if _, err := maintenance.Retain(t.Context(), s, nil, maintenance.Retention{}); !errors.Is(err, schema.ErrInvalid) {
		t.Errorf("no rule: %v", err)
	}
}

// meanwhile is a store that others change right after it was listed.
type meanwhile struct {
	*local.Store
	listed int
	at     int
	change func()
}

// after has change called after the n-th listing from now.
func (s *meanwhile) after(n int, change func()) { s.listed, s.at, s.change = 0, n, change }

func (s *meanwhile) Datasets(ctx context.Context) ([]store.Dataset, error) {
	list, err := s.Store.Datasets(ctx)
	if s.listed++; s.listed == s.at {
		s.change()
	}
	return list, err
}

// TestRetainTaggedMeanwhile: a snapshot that gets a tag while others are dropped stays, and ends nothing. The
// catalog is listed a few times, however many snapshots there are.
func TestRetainTaggedMeanwhile(t *testing.T) {
	s := &meanwhile{Store: open(t, filepath.Join(t.TempDir(), "store"))}
	rows := blobs(2, 12)
	for i := range rows {
		commit(t, s, "d", rows[:i+1])
	}
	snaps, err := maintenance.Snapshots(t.Context(), s, nil)
	must(t, err)
	s.after(2, func() { must(t, s.Tag(t.Context(), "d", "prod", 3)) })
	fates, err := maintenance.Retain(t.Context(), s, nil, maintenance.Retention{Last: 2})
	must(t, err)
	for i, f := range fates {
		if want := i != 2 && i < len(snaps)-2; f.Dropped != want || i == 2 && f.Why != "tagged prod" {
			t.Errorf("%+v", f)
		}
	}
	if s.listed > 3 {
		t.Errorf("the catalog was listed %d times", s.listed)
	}
}

// TestSnapshotsDroppedMeanwhile: what was dropped since the catalog was listed is left out, unless it was named.
func TestSnapshotsDroppedMeanwhile(t *testing.T) {
	s := &meanwhile{Store: open(t, filepath.Join(t.TempDir(), "store"))}
	rows := blobs(3, 4)
	for i := range rows {
		commit(t, s, "d", rows[:i+1])
	}
	s.after(1, func() { must(t, s.Drop(t.Context(), "d", 2)) })
	snaps, err := maintenance.Snapshots(t.Context(), s, []maintenance.Name{{Dataset: "d"}})
	must(t, err)
	var numbers []int64
	for _, snap := range snaps {
		numbers = append(numbers, snap.Number)
	}
	if !slices.Equal(numbers, []int64{1, 3, 4}) {
		t.Errorf("there are %d", numbers)
	}
	s.after(1, func() { must(t, s.Drop(t.Context(), "d", 3)) })
	if _, err := maintenance.Snapshots(t.Context(), s, []maintenance.Name{{Dataset: "d"}, {Dataset: "d",
		Number: 3}}); !errors.Is(err,
		schema.ErrNotFound) {
		t.Errorf("one that was named: %v", err)
	}
}
