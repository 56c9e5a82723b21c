package command

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bowstring/fetch/store"
	"bowstring/internal/objecttest"
	"bowstring/schema"
)

// refRow is a row as the manifest has it.
type refRow struct {
	id   schema.ID
	refs []schema.BlobRef // the zero value for null
}

func refRows(t *testing.T, dir, dataset string) (*schema.Snapshot, []refRow, map[schema.ObjectPrefix]*schema.ObjectSet) {
	t.Helper()
	st, err := openStore(t.Context(), dir, false, quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = st.Close() }()
	return manifestOf(t, st, dataset)
}

// manifestOf are the rows of a dataset in a store, and their sets.
func manifestOf(t testing.TB, st store.Store, dataset string) (*schema.Snapshot, []refRow,
	map[schema.ObjectPrefix]*schema.ObjectSet) {
	t.Helper()
	snap, err := st.Snapshot(t.Context(), dataset, 0)
	if err != nil {
		t.Fatal(err)
	}
	bases, err := readSets(t.Context(), st, snap)
	if err != nil {
		t.Fatal(err)
	}
	sets := map[schema.ObjectPrefix]*schema.ObjectSet{}
	for _, b := range bases {
		sets[b.Ref.Prefix] = b.Set
	}
	var rows []refRow
	err = store.EachPage(t.Context(), snap, snap.Chunks, st.Get, func(_ schema.Chunk, m *schema.Manifest) error {
		page := m.Page(0)
		for i := range page.Rows() {
			row := refRow{id: page.ID(i)}
			for c := range schema.BlobFields(snap.Schema) {
				ref, _ := page.Blob(c, i)
				row.refs = append(row.refs, ref)
			}
			rows = append(rows, row)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return snap, rows, sets
}

// TestAttachLazy: data that is attached without being read has the ids of an import, in
// its order, and each blob is at its extent; its reference says that its checksum is not
// known.
func TestAttachLazy(t *testing.T) {
	for _, c := range attachedSets {
		t.Run(c.name, func(t *testing.T) {
			path := c.path(t)
			imported, there := filepath.Join(t.TempDir(), "imported"), filepath.Join(t.TempDir(), "attached")
			args := append([]string{path, "d", "--json"}, c.flags...)
			if status, _, errs := runImport(t, append(args, "--store", imported)...); status != 0 {
				t.Fatal(errs)
			}
			if status, _, errs := runCommand(t, append(append([]string{"attach", "--lazy"}, args...), "--store",
				there)...); status != 0 {
				t.Fatal(errs)
			}
			_, want := storedRows(t, imported, "d")
			_, got, sets := refRows(t, there, "d")
			if len(got) != len(want) {
				t.Fatalf("%d rows, %d imported", len(got), len(want))
			}
			unproven := 0
			for i, row := range got {
				if row.id != want[i].id {
					t.Errorf("row %d has another id", i)
				}
				for b, ref := range row.refs {
					a, _ := schema.ParseObjectAddress(ref.Key)
					if !ref.Unproven() {
						continue
					}
					unproven++
					set := sets[a.Prefix]
					if set == nil || !set.Unproven || a.Packed {
						t.Fatalf("row %d: set %v, %+v", i, set, a)
					}
					dir := strings.TrimPrefix(set.Bucket, "file://")
					data, err := os.ReadFile(filepath.Join(dir, set.Objects[a.Object].Key))
					if err != nil {
						t.Fatal(err)
					}
					if data = data[a.Offset : a.Offset+ref.Size]; !bytes.Equal(data, want[i].blobs[b]) {
						t.Errorf("row %d: other bytes", i)
					}
				}
			}
			lazy := !strings.Contains(c.name, "litdata") && !strings.Contains(c.name, "parquet") &&
				!strings.Contains(c.name, "mds") && c.name != "tfrecord" && c.name != "huggingface"
			if (unproven > 0) != lazy {
				t.Errorf("%d blobs have no checksum", unproven)
			}
			if sum := attachJSON(t, "--update", "d", "--store", there); sum.Changed {
				t.Errorf("nothing has changed: %+v", *sum.Update)
			}
		})
	}
}

// TestAttachLazyTars: of tars of large members little is read.
func TestAttachLazyTars(t *testing.T) {
	server := serveS3(t, objecttest.Config{})
	url, size := server.URL("b"), 0
	for n := range 4 {
		var members []string
		for i := range 6 {
			members = append(members, fmt.Sprintf("%d-%d.bin", n, i), strings.Repeat(string(rune('a'+i)), 1_500_000))
		}
		content := tarOf(t, tar.FormatUSTAR, members...)
		size += len(content)
		server.PutObject("b", fmt.Sprintf("train-%d.tar", n), []byte(content))
	}
	there := filepath.Join(t.TempDir(), "attached")
	before := server.Counts().Sent
	if sum := attachJSON(t, url, "d", "--lazy", "--store", there); sum.Rows != 24 || sum.Blobs != 24 || sum.Bytes != 24*1_500_000 {
		t.Errorf("%+v", sum)
	}
	if read := server.Counts().Sent - before; read > int64(size)/50 {
		t.Errorf("%d of %d bytes were read", read, size)
	}
	// Proving reads all. The rows have the same extents as before, and checksums.
	sum := attachJSON(t, "--update", "d", "--prove", "--store", there)
	if *sum.Update != (updated{Proven: 24}) {
		t.Errorf("%+v", *sum.Update)
	}
	if p := proofIn(t, there, "d"); p.Blobs != 24 || p.OfBlobs != 24 {
		t.Errorf("%+v", p)
	}
}

// proofIn is how much of a dataset has a checksum, of what had none.
func proofIn(t *testing.T, dir, dataset string) (proof store.Proof) {
	t.Helper()
	inStore(t, dir, func(ctx context.Context, st store.Store) error {
		snap, err := st.Snapshot(ctx, dataset, 0)
		if err == nil {
			proof, err = store.ProverOf(st).Proof(ctx, snap)
		}
		return err
	})
	return proof
}
