package command

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"bowstring/fetch/ingest"
	"bowstring/fetch/store"
	"bowstring/internal/objecttest"
	"bowstring/schema"
)

// inStore does something with a store.
func inStore(t *testing.T, dir string, do func(ctx context.Context, st store.Store) error) {
	t.Helper()
	st, err := openStore(t.Context(), dir, false, quiet)
	if err != nil {
		t.Fatal(err)
	}
	if err := do(t.Context(), st); err != nil {
		t.Error(err)
	}
	if err := st.Close(); err != nil {
		t.Error(err)
	}
}

// deleteWhere deletes rows of a dataset.
func deleteWhere(t *testing.T, dir, dataset, where string) {
	t.Helper()
	inStore(t, dir, func(ctx context.Context, st store.Store) error {
		a, err := ingest.Alter(ctx, st, ingest.AlterOptions{Dataset: dataset, DeleteWhere: where})
		if err != nil {
			return err
		}
		defer func() { _ = a.Close() }()
		_, done, err := a.Commit(ctx)
		if err == nil && done.Deleted == 0 {
			t.Errorf("nothing is %s", where)
		}
		return err
	})
}

// labelled is a tar of samples with labels.
func labelled(t *testing.T, name string, n int) string {
	t.Helper()
	var members []string
	for i := range n {
		members = append(members, fmt.Sprintf("%s%d.jpg", name, i), string(photo(t, 100*n+i)), fmt.Sprintf("%s%d.cls", name, i),
			fmt.Sprint(i))
	}
	return tarOf(t, tar.FormatUSTAR, members...)
}

// TestAttachUpdateOfAltered: rows that were changed or deleted by hand are read again by an update, also where another place was
// attached since, or rows were appended. Where only rows were appended, nothing is read again.
func TestAttachUpdateOfAltered(t *testing.T) {
	for _, c := range []struct {
		name    string
		altered bool
		attach  bool // another place is attached behind
		append  bool // rows are imported behind
	}{
		{"altered", true, false, false},
		{"altered, then attached to", true, true, false},
		{"altered, then appended to", true, false, true},
		{"attached to", false, true, false},
		{"appended to", false, false, true},
		{"all", true, true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			server := serveS3(t, objecttest.Config{})
			server.PutObject("b", "one/x-0.tar", []byte(labelled(t, "a", 3)))
			server.PutObject("b", "one/x-1.tar", []byte(labelled(t, "b", 4)))
			server.PutObject("b", "two/x-0.tar", []byte(labelled(t, "c", 5)))
			url := strings.Replace(server.URL("b"), "?", "/one?", 1)
			there, again := filepath.Join(t.TempDir(), "attached"), filepath.Join(t.TempDir(), "again")
			attachJSON(t, url, "d", "--store", again)
			attachJSON(t, url, "d", "--store", there)
			if c.altered {
				deleteWhere(t, there, "d", "label == 2")
			}
			if c.attach {
				attachJSON(t, strings.Replace(url, "/one", "/two", 1), "d", "--mode", "append", "--store", there)
			}
			if c.append {
				root := writeFiles(t, map[string]string{"y.tar": labelled(t, "z", 2)})
				if status, _, errs := runImport(t, root, "d", "--mode", "append", "--store", there); status != 0 {
					t.Fatal(errs)
				}
			}
			before := server.Counts().Requests[objecttest.Get]
			sum := attachJSON(t, url, "d", "--mode", "replace", "--store", there)
			want := updated{Kept: 7}
			if c.altered {
				want = updated{Kept: 5, New: 2}
			}
			if c.attach {
				want.Gone += 5
			}
			if c.append {
				want.Gone += 2
			}
			if *sum.Update != want {
				t.Errorf("%+v, want %+v", *sum.Update, want)
			}
			if read := server.Counts().Requests[objecttest.Get] - before; !c.altered && read > 0 {
				t.Errorf("%d reads of what has not changed", read)
			}
			_, rows := storedRows(t, again, "d")
			if _, got := storedRows(t, there, "d"); !slices.EqualFunc(rows, got, sameRow) {
				t.Errorf("rows %+v\nattached anew: %+v", got, rows)
			}
		})
	}
}

// TestAttachProves: proving what was attached without being read changes no row and reads what has no checksum, and
// nothing besides: what streams have read before is not read again, whichever part of an object it is.
func TestAttachProves(t *testing.T) {
	server := serveS3(t, objecttest.Config{})
	url := server.URL("b")
	members := func(name string) (all []string) {
		for i := range 6 { // further apart than what is read together
			all = append(all, fmt.Sprintf("%s%d.bin", name, i), strings.Repeat(name, 200_000+i))
		}
		return all
	}
	for n, name := range []string{"a", "b", "c"} {
		server.PutObject("b", fmt.Sprintf("x-%d.tar", n), []byte(tarOf(t, tar.FormatUSTAR, members(name)...)))
	}
	there := filepath.Join(t.TempDir(), "attached")
	attachJSON(t, url, "d", "--lazy", "--store", there)
	_, rows, _ := refRows(t, there, "d")
	proven := int64(0)
	inStore(t, there, func(ctx context.Context, st store.Store) error {
		for i, row := range rows { // the first tar, and every other sample of the second
			if i >= 12 || i >= 6 && i%2 == 1 {
				continue
			}
			blob, err := st.Get(ctx, row.refs[0])
			if err != nil {
				return err
			}
			if _, err := store.ProverOf(st).Prove(ctx, row.refs[0], blob.Bytes()); err != nil {
				return err
			}
			blob.Release()
			proven++
		}
		return nil
	})
	denied := func(keys ...string) {
		for _, key := range keys {
			server.Fail(objecttest.Fault{Kinds: []objecttest.Kind{objecttest.Get}, Prefix: key, Status: 403, Code: "AccessDenied"})
		}
	}
	update := func(want updated, changed bool) (sent int64) {
		t.Helper()
		before := server.Counts().Sent
		sum := attachJSON(t, "--update", "d", "--prove", "--store", there)
		if *sum.Update != want || sum.Changed != changed {
			t.Errorf("%+v, changed %t; want %+v, %t", *sum.Update, sum.Changed, want, changed)
		}
		if p := proofIn(t, there, "d"); p.Blobs != p.OfBlobs || p.OfBlobs != sum.Rows {
			t.Errorf("%+v of %d rows", p, sum.Rows)
		}
		return server.Counts().Sent - before
	}
	denied("x-0.tar")
	if sent := update(updated{Kept: proven, Proven: 18 - proven}, false); sent > (18-proven)*210_000 {
		t.Errorf("%d bytes were read for %d samples of 200,000", sent, 18-proven)
	}
	denied("x-1.tar", "x-2.tar")
	update(updated{Kept: 18}, false)
	// New objects are walked as before, and read.
	server.PutObject("b", "x-3.tar", []byte(tarOf(t, tar.FormatUSTAR, members("d")...)))
	update(updated{Kept: 18, New: 6}, true)
	// All of it is read again by its URL.
	server.Heal()
	sum := attachJSON(t, url, "d", "--mode", "replace", "--prove", "--store", there)
	if *sum.Update != (updated{Changed: 24}) && *sum.Update != (updated{Proven: 24}) {
		t.Errorf("%+v", *sum.Update)
	}
	if p := proofIn(t, there, "d"); p.OfBlobs != 0 {
		t.Errorf("%+v", p)
	}
}

// TestAttachProvesWhatChanged: rows of an object that was put again are others, and proven, too. Files that are one sample each
// are read one by one.
func TestAttachProvesWhatChanged(t *testing.T) {
	server := serveS3(t, objecttest.Config{})
	for i := range 8 {
		server.PutObject("b", fmt.Sprintf("%d/%d.jpg", i%2, i), photo(t, i))
	}
	there := filepath.Join(t.TempDir(), "attached")
	attachJSON(t, server.URL("b"), "d", "--lazy", "--store", there)
	inStore(t, there, func(ctx context.Context, st store.Store) error {
		_, rows, _ := manifestOf(t, st, "d")
		blob, err := st.Get(ctx, rows[0].refs[0])
		if err == nil {
			_, err = store.ProverOf(st).Prove(ctx, rows[0].refs[0], blob.Bytes())
		}
		return err
	})
	server.PutObject("b", "1/3.jpg", photo(t, 70))
	server.Fail(objecttest.Fault{Kinds: []objecttest.Kind{objecttest.Get}, Prefix: "0/0.jpg", Status: 403, Code: "AccessDenied"})
	sum := attachJSON(t, "--update", "d", "--prove", "--store", there)
	if *sum.Update != (updated{Kept: 1, Proven: 6, Changed: 1}) {
		t.Errorf("%+v", *sum.Update)
	}
	if p := proofIn(t, there, "d"); p.Blobs != 8 || p.OfBlobs != 8 {
		t.Errorf("%+v", p)
	}
	server.Heal()
	status, out, errs := runCommand(t, "verify", there, "d@2")
	if status != 0 {
		t.Errorf("%s%s", out, errs)
	}
}

// TestAttachByIndex: indexes that one attachment leaves beside tars are read by the next one, which reads little of the tars; one
// that is wrong is named.
func TestAttachByIndex(t *testing.T) {
	server := serveS3(t, objecttest.Config{})
	size := 0
	for n := range 3 {
		var members []string
		for i := range 200 {
			members = append(members, fmt.Sprintf("%d-%03d.bin", n, i), strings.Repeat("x", 5000+i+n))
		}
		content := tarOf(t, tar.FormatUSTAR, members...)
		size += len(content)
		server.PutObject("b", fmt.Sprintf("x-%d.tar", n), []byte(content))
	}
	one, two := filepath.Join(t.TempDir(), "one"), filepath.Join(t.TempDir(), "two")
	url := server.URL("b")
	attachJSON(t, url, "d", "--lazy", "--write-index", "--index-format", "dali", "--store", one)
	before := server.Counts()
	sum := attachJSON(t, url, "d", "--lazy", "--index", "sample", "--store", two)
	after := server.Counts()
	if gets := after.Requests[objecttest.Get] - before.Requests[objecttest.Get]; gets > 3*45 || sum.Rows != 600 {
		t.Errorf("%d reads for %d rows", gets, sum.Rows)
	}
	_, want, _ := refRows(t, one, "d")
	_, got, _ := refRows(t, two, "d")
	same := func(a, b refRow) bool {
		x, _ := schema.ParseObjectAddress(a.refs[0].Key)
		y, _ := schema.ParseObjectAddress(b.refs[0].Key)
		return a.id == b.id && a.refs[0].Size == b.refs[0].Size && x.Offset == y.Offset && x.Object < 6 && y.Object < 6
	}
	if !slices.EqualFunc(want, got, same) {
		t.Error("the rows differ")
	}
	index, _ := server.Object("b", "x-1.idx")
	server.PutObject("b", "x-0.idx", index)
	sum = attachJSON(t, url, "d", "--lazy", "--mode", "replace", "--store", two)
	if !sum.Changed && *sum.Update != (updated{Kept: 600}) {
		t.Errorf("%+v", *sum.Update)
	}
	three := filepath.Join(t.TempDir(), "three")
	sum = attachJSON(t, url, "d", "--lazy", "--store", three)
	if notes := strings.Join(sum.Notes, "\n"); !strings.Contains(notes, "x-0.idx") || !strings.Contains(notes, "x-0.tar") ||
		sum.Rows != 600 {
		t.Errorf("%d rows, notes %s", sum.Rows, notes)
	}
	if !bytes.Contains(index, []byte("1-000.bin")) {
		t.Errorf("the index is %.100q", index)
	}
}

// TestAttachByInventory: a list takes the place of listing the bucket. An object that has changed since is named.
func TestAttachByInventory(t *testing.T) {
	server := serveS3(t, objecttest.Config{})
	list := ""
	for i := range 6 {
		key := fmt.Sprintf("p/%c/%d.jpg", 'a'+i%2, i)
		v := server.PutObject("b", key, photo(t, i))
		list += fmt.Sprintf("%s,%d,%s\n", key, len(photo(t, i)), v.ETag)
	}
	root := writeFiles(t, map[string]string{"list.csv": "key,size,etag\n" + list})
	url := strings.Replace(server.URL("b"), "?", "/p?", 1)
	there := filepath.Join(t.TempDir(), "attached")
	attach := func(args ...string) []string {
		return append(args, url, "d", "--inventory", filepath.Join(root, "list.csv"), "--store", there)
	}
	before := server.Counts().Requests[objecttest.List]
	sum := attachJSON(t, attach()...)
	if lists := server.Counts().Requests[objecttest.List] - before; lists != 0 || sum.Rows != 6 {
		t.Errorf("%d requests for lists, %d rows", lists, sum.Rows)
	}
	if sum := attachJSON(t, "--update", "d", "--store", there); sum.Changed {
		t.Errorf("what is listed is something else: %+v", *sum.Update)
	}
	server.PutObject("b", "p/a/2.jpg", photo(t, 99))
	there = filepath.Join(t.TempDir(), "changed")
	status, _, errs := runCommand(t, append([]string{"attach"}, attach()...)...)
	if status == 0 || !strings.Contains(errs, "a/2.jpg") || !strings.Contains(errs, "is not the one with") {
		t.Errorf("status %d: %s", status, errs)
	}
}
