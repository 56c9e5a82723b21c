package command

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"bowstring/internal/objecttest"
	"bowstring/schema"
)

// upload puts the files below a directory into a folder of a bucket, and returns the folder's URL.
func upload(t *testing.T, server *objecttest.Server, root, bucket, folder string) (url string) {
	t.Helper()
	where := server.URL(bucket)
	err := filepath.WalkDir(root, func(p string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		content, err := os.ReadFile(p)
		server.PutObject(bucket, folder+"/"+filepath.ToSlash(rel), content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Replace(where, "?", "/"+folder+"?", 1)
}

// objectsOfRows are the keys of the objects with the rows of a dataset, with the number
// of rows of each.
func objectsOfRows(t *testing.T, dir, dataset string) map[string]int64 {
	t.Helper()
	st, err := openStore(t.Context(), dir, false, quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = st.Close() }()
	_, rows, sets := manifestOf(t, st, dataset)
	found := map[string]int64{}
	for _, row := range rows {
		for _, ref := range row.refs {
			if a, ok := schema.ParseObjectAddress(ref.Key); ok && sets[a.Prefix] != nil {
				found[sets[a.Prefix].Objects[a.Object].Key]++
				break
			}
		}
	}
	return found
}

// TestAttachUpdateShards: an update reads the shard alone that has another version, of every format of shards; the other ones
// cannot be read at all, and the rows are those of an import.
func TestAttachUpdateShards(t *testing.T) {
	server := serveS3(t, objecttest.Config{})
	for _, c := range attachedSets {
		if strings.HasPrefix(c.name, "imagefolder") || c.name == "audiofolder" || c.name == "list" {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			root, name := c.path(t), strings.ReplaceAll(c.name, " ", "-")
			url := upload(t, server, root, name, "data")
			imported, there := filepath.Join(t.TempDir(), "imported"), filepath.Join(t.TempDir(), "attached")
			if status, _, errs := runImport(t, append([]string{root, "d", "--store", imported}, c.flags...)...); status != 0 {
				t.Fatal(errs)
			}
			attachJSON(t, append([]string{url, "d", "--store", there}, c.flags...)...)
			objects := objectsOfRows(t, there, "d")
			keys := slices.Sorted(maps.Keys(objects))
			if len(keys) == 0 {
				t.Fatal("the rows are in no object")
			}
			for i, again := range append(keys, "") { // the one that is put again
				server.Heal()
				kept := updated{}
				for _, key := range keys {
					if key == again {
						server.Renew(name, key, fmt.Sprintf("%032x-2", i))
						kept.Changed = objects[key]
						continue
					}
					kept.Kept += objects[key]
					// MDS and LitData read a sample of the first shard for what its bytes hold.
					first := strings.Contains(key, "shard.00000") || strings.Contains(key, "chunk-0-0")
					// One file of records alone would have other columns, so all are read. A snapshot does not know the
					// version of an index of Megatron's, so all pairs are read.
					whole := c.name == "tfrecord" && again != "" || c.name == "megatron"
					if !first && !whole {
						server.Fail(objecttest.Fault{Kinds: []objecttest.Kind{objecttest.Get}, Prefix: key, Status: 403,
							Code: "AccessDenied"})
					}
				}
				sum := attachJSON(t, "--update", "d", "--store", there)
				if *sum.Update != kept || sum.Changed != (again != "") {
					t.Errorf("%s put again: %+v, want %+v", again, *sum.Update, kept)
				}
				server.Heal()
				one, want := storedRows(t, imported, "d")
				two, got := storedRows(t, there, "d")
				if !slices.EqualFunc(want, got, sameRow) || !one.Schema.Equal(two.Schema) {
					t.Errorf("%s put again: %v, rows %+v\nimported: %v, %+v", again, two.Schema, got, one.Schema, want)
				}
			}
		})
	}
}

// TestAttachUpdateTars changes tars in every way. The dataset is always what an import is.
func TestAttachUpdateTars(t *testing.T) {
	root, there := t.TempDir(), filepath.Join(t.TempDir(), "attached")
	imported := filepath.Join(t.TempDir(), "imported")
	sample := func(key string, n int) []string {
		return []string{key + ".jpg", string(photo(t, n)), key + ".cls", fmt.Sprint(n % 5), key + ".json",
			fmt.Sprintf(`{"n": %d}`, n)}
	}
	write := func(name string, samples ...[]string) {
		if err := os.WriteFile(filepath.Join(root, name), []byte(tarOf(t, tar.FormatUSTAR, slices.Concat(samples...)...)),
			0o644); err != nil {
			t.Fatal(err)
		}
	}
	for n := range 6 {
		write(fmt.Sprintf("train-%d.tar", n), sample(fmt.Sprint("a", n), 2*n), sample(fmt.Sprint("b", n), 2*n+1))
	}
	write("val-0.tar", sample("v", 30))
	attachJSON(t, root, "d", "--store", there)
	for _, step := range []struct {
		name   string
		change func()
		flags  []string
		want   updated
	}{
		{"nothing", func() {}, nil, updated{Kept: 13}},
		{"one has another sample", func() { write("train-2.tar", sample("a2", 4), sample("x2", 70)) }, nil,
			updated{Kept: 11, Changed: 1, New: 1, Gone: 1}},
		{"one more and one less", func() {
			write("train-6.tar", sample("a6", 50))
			_ = os.Remove(filepath.Join(root, "train-0.tar"))
		}, nil, updated{Kept: 11, New: 1, Gone: 2}},
		{"only less", func() { _ = os.Remove(filepath.Join(root, "train-6.tar")) }, nil, updated{Kept: 11, Gone: 1}},
		{"a column of another type", func() {
			write("train-3.tar", []string{"c.jpg", string(photo(t, 80)), "c.cls", "1", "c.json", `{"n": 1.5}`})
		}, []string{"--drop-column", "n"}, updated{Kept: 9, New: 1, Gone: 2}},
		{"and back", func() { write("train-3.tar", sample("c", 80)) }, []string{"--drop-column", "n"},
			updated{Kept: 9, Changed: 1}},
		{"a key that another has", func() { write("train-3.tar", sample("c", 80), sample("a4", 8)) },
			[]string{"--skip-bad"}, updated{Kept: 8, Changed: 2}},
	} {
		step.change()
		sum := attachJSON(t, append([]string{"--update", "d", "--store", there}, step.flags...)...)
		if *sum.Update != step.want {
			t.Errorf("%s: %+v, want %+v", step.name, *sum.Update, step.want)
		}
		if status, _, errs := runImport(t, append([]string{root, "d", "--store", imported}, step.flags...)...); status != 0 {
			t.Fatal(errs)
		}
		_, want := storedRows(t, imported, "d")
		if _, got := storedRows(t, there, "d"); !slices.EqualFunc(want, got, sameRow) {
			t.Errorf("%s: rows %+v\nimported: %+v", step.name, got, want)
		}
	}
}

// TestAttachResumes kills an attachment, again and again, and each one goes on where the one before was: no shard that was
// read whole is read again, and the dataset is what an import is.
func TestAttachResumes(t *testing.T) {
	server := serveS3(t, objecttest.Config{})
	root := t.TempDir()
	const shards, each = 12, 13
	for n := range shards {
		var members []string
		for i := range each { // a shard is larger than a batch
			members = append(members, fmt.Sprintf("%02d-%d.bin", n, i), strings.Repeat(string(rune('a'+i)), 700_000+100*n+i))
		}
		if err := os.WriteFile(filepath.Join(root, fmt.Sprintf("train-%02d.tar", n)),
			[]byte(tarOf(t, tar.FormatUSTAR, members...)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	url := upload(t, server, root, "b", "data")
	there, imported := filepath.Join(t.TempDir(), "attached"), filepath.Join(t.TempDir(), "imported")
	if status, _, errs := runImport(t, root, "d", "--store", imported); status != 0 {
		t.Fatal(errs)
	}
	read := int64(0)
	for kills := range 3 {
		// The read of a tar must not end: the attachment waits there until it is killed.
		// The first two stretches of it are read for the columns.
		stuck := fmt.Sprintf("data/train-%02d.tar", 3*kills+4)
		for wait := time.Second; ; wait *= 2 {
			server.Fail(objecttest.Fault{Kinds: []objecttest.Kind{objecttest.Get}, Prefix: stuck, Skip: 2, Hang: true})
			p := exec.Command("bowstring", "attach", url, "d", "--store", there, "--save-every", "1ns")
			var errs bytes.Buffer
			p.Stderr = &errs
			if err := p.Start(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(wait)
			if err := p.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			if err := p.Wait(); err == nil || p.ProcessState.ExitCode() >= 0 {
				t.Fatalf("it was not killed: %v, stderr: %s", err, errs.String())
			}
			server.Heal()
			if rows := savedRows(t, there); rows > read {
				read = rows
				break
			}
			if wait > time.Minute {
				t.Fatalf("nothing more than %d rows was put down; stderr: %s", read, errs.String())
			}
		}
		// Saved rows are not read again.
		for key := range objectsOfRows(t, there, "d.attaching") {
			server.Fail(objecttest.Fault{Kinds: []objecttest.Kind{objecttest.Get}, Prefix: key, Status: 403, Code: "AccessDenied"})
		}
	}
	if read == 0 {
		t.Fatal("nothing was put down")
	}
	sum := attachJSON(t, url, "d", "--store", there)
	if sum.Rows != each*shards || sum.Snapshot != 1 {
		t.Errorf("%+v", sum)
	}
	server.Heal()
	_, want := storedRows(t, imported, "d")
	if _, got := storedRows(t, there, "d"); !slices.EqualFunc(want, got, sameRow) {
		t.Errorf("rows %+v\nimported: %+v", got, want)
	}
	if got := fmt.Sprint(snapshots(t, there, "d.attaching")); got != "[]" {
		t.Errorf("what was put down on the way is still there: %s", got)
	}
}

// savedRows are the rows that an attachment has put down on its way.
func savedRows(t *testing.T, dir string) int64 {
	t.Helper()
	st, err := openStore(t.Context(), dir, false, quiet)
	if err != nil {
		return 0 // there is none yet
	}
	defer func() { _ = st.Close() }()
	snap, err := st.Snapshot(t.Context(), "d.attaching", 0)
	if err != nil {
		return 0
	}
	return snap.Rows()
}

// TestAttachWritesIndexes: an index is left beside each tar that has none, and none is replaced.
func TestAttachWritesIndexes(t *testing.T) {
	server := serveS3(t, objecttest.Config{})
	url := server.URL("b")
	server.PutObject("b", "x-0.tar", []byte(tarOf(t, tar.FormatUSTAR, "a.jpg", string(photo(t, 1)), "b.jpg", string(photo(t, 2)))))
	server.PutObject("b", "x-1.tar", []byte(tarOf(t, tar.FormatUSTAR, "c.jpg", string(photo(t, 3)))))
	server.PutObject("b", "x-1.tar.idx", []byte("another program's"))
	there := filepath.Join(t.TempDir(), "attached")
	attachJSON(t, url, "d", "--write-index", "--store", there)
	index, found := server.Object("b", "x-0.tar.idx")
	if !found || len(index) != 3*8 || binary.LittleEndian.Uint64(index) != 0 || binary.LittleEndian.Uint64(index[8:])%512 != 0 {
		t.Errorf("the index is %x", index)
	}
	if other, _ := server.Object("b", "x-1.tar.idx"); string(other) != "another program's" {
		t.Errorf("an index was replaced by %x", other)
	}
	if sum := attachJSON(t, "--update", "d", "--store", there); sum.Changed || sum.Update.Kept != 3 {
		t.Errorf("indexes change the dataset: %+v", *sum.Update)
	}
}
