package bucket

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"bowstring/fetch/object"
	"bowstring/fetch/store"
	"bowstring/fetch/store/protocol"
	"bowstring/internal/storetest"
	"bowstring/schema"
)

// TestRebuildAndDoctor: if objects of a store are missing, torn, or another program's,
// Examine reports it. Reads of the rest succeed, or fail with the object's name. Rebuild
// restores what still exists.
func TestRebuildAndDoctor(t *testing.T) {
	for name, tt := range map[string]struct {
		harm    func(b harmed)
		says    string // of what Examine has found; "": no problem
		damage  string // of what Rebuild reports; "": nothing
		missing bool   // that a snapshot lacks segments
		from    string // where Rebuild has the catalog of d from; "": as it is
		lost    bool   // the rows of d
		dataset bool   // d is there before Rebuild
	}{
		"nothing":                     {harm: func(harmed) {}, dataset: true},
		"no catalog":                  {harm: func(b harmed) { b.remove("cat/d") }, says: "no collection can be made", from: "copy"},
		"torn catalog":                {harm: func(b harmed) { b.tear("cat/d", 20) }, says: "catalog", damage: "damaged", from: "copy"},
		"no catalog, and no copy":     {harm: func(b harmed) { b.remove("cat/d"); b.remove("bak/d") }, says: "no snapshot names 1 segments", from: "records"},
		"torn catalog, and torn copy": {harm: func(b harmed) { b.tear("cat/d", 9); b.tear("bak/d", 9) }, says: "catalog", damage: "damaged", from: "records"},
		"no segment":                  {harm: func(b harmed) { b.remove(b.segments()[0]) }, says: "d@1 lacks 1 segments", missing: true, lost: true, dataset: true},
		"torn segment":                {harm: func(b harmed) { b.tear(b.segments()[0], 100) }, says: "1 segments are torn", damage: "segment", lost: true, dataset: true},
		"another program's objects": {harm: func(b harmed) {
			for _, key := range []string{"README.txt", "seg/notes.txt", "seg/zz/1", "cat/.d.tmp", "mem/.x.tmp", "lease/x"} {
				b.put(key, []byte("another program's"))
			}
		}, says: "segments", dataset: true},
		"another program's object in the catalog": {harm: func(b harmed) { b.put("cat/README.txt", []byte("another program's")) },
			says: "catalog", damage: "lost/README.txt"},
	} {
		t.Run(name, func(t *testing.T) {
			url := "file://" + t.TempDir()
			found(t, url)
			rows := [][]byte{bytes.Repeat([]byte("one"), 300), bytes.Repeat([]byte("two"), 300)}
			func() {
				s, err := Open(t.Context(), url, testOptions())
				if err != nil {
					t.Fatal(err)
				}
				in, err := s.Begin(t.Context(), "d")
				if err != nil {
					t.Fatal(err)
				}
				snap, err := storetest.Put(t.Context(), in, rows, 1)
				if err == nil {
					_, err = in.Commit(t.Context(), snap)
				}
				if err = errors.Join(err, in.Close(), s.Close()); err != nil {
					t.Fatal(err)
				}
			}()
			b := harmed{t, must(object.Open(t.Context(), url, testOptions().Bucket))}
			tt.harm(b)
			findings, err := Examine(t.Context(), url, testOptions())
			if err != nil {
				t.Fatal(err)
			}
			worse := slices.DeleteFunc(slices.Clone(findings), func(f store.Finding) bool { return f.Level == store.LevelOK })
			if said := fmt.Sprint(worse); tt.says != "" && !strings.Contains(said, tt.says) || tt.says == "" && len(worse) > 0 {
				t.Errorf("found %s, want %q", said, tt.says)
			}
			unknown := strings.Contains(tt.says, "no snapshot names") // nothing distinguishes it from garbage
			if report, err := collectAt(t, url); err == nil && report.DeadBlobs > 0 && !unknown || err != nil && !errors.Is(err, schema.ErrDataLoss) {
				t.Errorf("a collection would take %+v: %v", report, err) // and keep nothing that can be put right
			}
			_, _, err = readAll(t, url)
			if there := !errors.Is(err, errNoDataset); there != tt.dataset {
				t.Errorf("before it is rebuilt: %v", err)
			}
			report, err := Rebuild(t.Context(), url, RebuildOptions{Options: testOptions(), Payloads: true})
			if err != nil {
				t.Fatal(err)
			}
			said := strings.Join(report.Damage, "; ")
			if (tt.damage == "") != (said == "") || !strings.Contains(said, tt.damage) || (len(report.Missing) > 0) != tt.missing {
				t.Errorf("reported damage %q and missing %v", said, report.Missing)
			}
			var want []RebuiltDataset
			if tt.from != "" {
				want = []RebuiltDataset{{"d", tt.from, 1}}
			}
			if !slices.Equal(report.Datasets, want) {
				t.Errorf("rebuilt %+v, want %+v", report.Datasets, want)
			}
			_, got, err := readAll(t, url)
			switch {
			case tt.lost:
				if err == nil || !errors.Is(err, schema.ErrNotFound) && !errors.Is(err, schema.ErrDataLoss) {
					t.Errorf("rows of a segment that is gone: %v", err)
				}
			case err != nil || !slices.EqualFunc(got, rows, bytes.Equal):
				t.Errorf("after it was rebuilt: %v", err)
			}
		})
	}
}

// TestRebuildEmpty: a store without datasets is one.
func TestRebuildEmpty(t *testing.T) {
	url := "file://" + t.TempDir()
	found(t, url)
	if report, err := Rebuild(t.Context(), url, RebuildOptions{Options: testOptions()}); err != nil || len(report.Damage) > 0 {
		t.Errorf("reported %+v: %v", report, err)
	}
	b := harmed{t, must(object.Open(t.Context(), url, testOptions().Bucket))}
	b.tear(dirCatalog+protocol.Control, 5)
	findings, err := Examine(t.Context(), url, testOptions())
	if err != nil || !strings.Contains(fmt.Sprint(findings), "rebuild") {
		t.Errorf("found of a torn partition of the protocol: %v, %v", findings, err)
	}
	if report, err := Rebuild(t.Context(), url, RebuildOptions{Options: testOptions()}); err != nil || len(report.Damage) != 1 {
		t.Errorf("reported %+v: %v", report, err)
	}
	if names, _, err := readAll(t, url); !errors.Is(err, errNoDataset) || len(names) > 0 {
		t.Errorf("datasets %v: %v", names, err)
	}
}

func must[T any](x T, err error) T {
	if err != nil {
		panic(err)
	}
	return x
}

var errNoDataset = errors.New("the dataset is not there")

// readAll reads the newest snapshot of d.
func readAll(t *testing.T, url string) (names []string, rows [][]byte, err error) {
	t.Helper()
	s, err := Open(t.Context(), url, testOptions())
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	list, err := s.Datasets(t.Context())
	for _, d := range list {
		names = append(names, d.Name)
	}
	if err != nil || !slices.Contains(names, "d") {
		return names, nil, errors.Join(err, errNoDataset)
	}
	snap, err := s.Snapshot(t.Context(), "d", 0)
	if err == nil {
		rows, err = storetest.Read(t.Context(), s, snap)
	}
	return names, rows, err
}

// harmed is a bucket that a test does harm to.
type harmed struct {
	t testing.TB
	object.Bucket
}

func (b harmed) put(key string, data []byte) {
	b.t.Helper()
	if _, _, err := b.Put(b.t.Context(), key, data, object.Condition{}); err != nil {
		b.t.Fatal(err)
	}
}

func (b harmed) remove(key string) {
	b.t.Helper()
	if err := b.Delete(b.t.Context(), key); err != nil {
		b.t.Fatal(err)
	}
}

// tear leaves the first bytes of an object.
func (b harmed) tear(key string, n int) {
	b.t.Helper()
	data, _, err := b.Get(b.t.Context(), key, schema.ObjectVersion{}, 1<<30)
	if err != nil {
		b.t.Fatal(err)
	}
	b.put(key, data[:n])
}

func (b harmed) segments() (keys []string) {
	b.t.Helper()
	for info, err := range b.List(b.t.Context(), object.ListOptions{Prefix: dirSegments}) {
		if err != nil {
			b.t.Fatal(err)
		}
		keys = append(keys, info.Key)
	}
	return keys
}
