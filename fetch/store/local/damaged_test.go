package local

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"bowstring/internal/storetest"
)

// committed is what a store has: the source of each snapshot, by name and number,
// and the number of each tagged one, by name and tag.
type committed map[string]string

// snapshots counts those that are no tags.
func (c committed) snapshots() (n int) {
	for name := range c {
		if strings.Contains(name, "@") {
			n++
		}
	}
	return n
}

func contents(ctx context.Context, s *Store) (committed, error) {
	list, err := s.Datasets(ctx)
	if err != nil {
		return nil, err
	}
	c := committed{}
	for _, d := range list {
		for _, number := range d.Snapshots {
			snap, err := s.Snapshot(ctx, d.Name, number)
			if err != nil {
				return nil, err
			}
			c[fmt.Sprintf("%s@%d", d.Name, number)] = snap.Source
		}
		for _, tag := range d.Tags {
			c[d.Name+" "+tag.Name] = fmt.Sprint(tag.Snapshot)
		}
	}
	return c, nil
}

// readOpened reads everything. Each answer must be right, or an error.
func readOpened(t *testing.T, what string, s *Store, has committed) (whole bool) {
	t.Helper()
	got, err := contents(t.Context(), s)
	if err != nil {
		refused(t, what, err)
		return false
	}
	if fmt.Sprint(got) != fmt.Sprint(has) {
		t.Fatalf("%s: the store has %v, and had %v", what, got, has)
	}
	whole = true
	for name, source := range has {
		d, number, is := strings.Cut(name, "@")
		if !is {
			continue // a tag
		}
		var n int64
		if _, err := fmt.Sscan(number, &n); err != nil {
			t.Fatal(err)
		}
		snap, err := s.Snapshot(t.Context(), d, n)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		blobs, err := storetest.Read(t.Context(), s, snap)
		if err != nil {
			refused(t, what, err)
			whole = false
		} else if !slices.EqualFunc(blobs, sourceBlobs(source), bytes.Equal) {
			t.Fatalf("%s: %s does not hold what was imported from %s", what, name, source)
		}
	}
	return whole
}

// TestDamagedStaysReadable damages the database: all that was committed can still be read,
// nothing can be changed, and no file is.
func TestDamagedStaysReadable(t *testing.T) {
	const seed = 13
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for _, clean := range []bool{true, false} {
		image, has := damageSample(t, clean)
		refusals := 0
		for round := range 12 {
			dir := copyStore(t, image)
			what := "the database is gone"
			if round == 0 {
				if err := os.RemoveAll(filepath.Join(dir, pebbleDir)); err != nil {
					t.Fatal(err)
				}
			} else {
				what = flipBit(t, filepath.Join(dir, pebbleDir), r)
			}
			before := fileSums(t, dir)
			if s, err := Open(dir, testOptions()); err == nil {
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			} else {
				refusals++
			}
			s, err := OpenDamaged(t.Context(), dir, testOptions())
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			if !readOpened(t, what, s, has) {
				t.Errorf("%s: not all can be read", what)
			}
			_, err = importSource(t.Context(), s, "d1", "after", func(string) {})
			refused(t, what, err)
			if err == nil || !strings.Contains(err.Error(), "store rebuild") {
				t.Errorf("%s: the refusal of an import does not say what to run: %v", what, err)
			}
			if err := s.Close(); err != nil {
				t.Errorf("%s: %v", what, err)
			}
			if after := fileSums(t, dir); after != before {
				t.Fatalf("%s: reading changed the files from\n%s to\n%s", what, before, after)
			}
		}
		if refusals < 2 {
			t.Errorf("clean %t: %d of 12 damages kept the store from opening", clean, refusals)
		}
	}
	if _, err := OpenDamaged(t.Context(), filepath.Join(t.TempDir(), "none"), testOptions()); err == nil {
		t.Error("a store that is not there was opened")
	}
}
