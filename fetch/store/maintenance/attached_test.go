package maintenance_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/fetch/store"
	"bowstring/fetch/store/local"
	"bowstring/fetch/store/maintenance"
	"bowstring/schema"
)

// tables is a store with the cells of another program's table beside it, at addresses.
type tables struct {
	*local.Store
	cells map[schema.Key][]byte

	mu       sync.Mutex
	read     map[schema.Key]int
	left     int // reads of cells until stop is called
	stop     context.CancelFunc
	referred []store.AttachedTable
}

var photos = store.AttachedTable{Keyspace: "theirs", Table: "photos", ID: "id", Data: "data"}

const address = "address of a"

func (s *tables) Traits() store.Traits { return store.Traits{Addresses: true, Replicas: 1} }

func (s *tables) Addressed(key schema.Key) (store.AttachedTable, bool) {
	return photos, strings.HasPrefix(string(key[:]), address)
}

func (s *tables) Get(ctx context.Context, ref schema.BlobRef) (schema.Blob, error) {
	if _, ok := s.Addressed(ref.Key); !ok {
		return s.Store.Get(ctx, ref)
	}
	if ctx.Err() != nil {
		return schema.Blob{}, context.Cause(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.left--; s.left == 0 {
		s.stop()
	}
	data, ok := s.cells[ref.Key]
	if !ok {
		return schema.Blob{}, fmt.Errorf("%w: the row is gone", schema.ErrDataLoss)
	}
	s.read[ref.Key]++
	return schema.NewBlob(data, nil), nil
}

// referring is one that cells may be referred to in.
type referring struct{ *tables }

func (s referring) Refer(_ context.Context, list []store.AttachedTable) error {
	s.referred = list
	return nil
}

func openTables(t *testing.T, name string) *tables {
	return &tables{Store: open(t, filepath.Join(t.TempDir(), name)), cells: map[schema.Key][]byte{},
		read: map[schema.Key]int{}}
}

// attach appends a chunk of two pages to a dataset: rows with a label, a cell in each of two columns, some
// of them null, and some with the bytes of another.
func (s *tables) attach(t *testing.T, dataset string, rows int) *schema.Snapshot {
	t.Helper()
	ctx := t.Context()
	sc, err := schema.NewSchema([]arrow.Field{{Name: "label", Type: arrow.BinaryTypes.String, Nullable: true}},
		[]arrow.Field{schema.BlobField("data", "", true), schema.BlobField("mask", "", true)})
	must(t, err)
	snap := schema.Snapshot{Source: "table theirs.photos", Schema: sc}
	if newest, err := s.Snapshot(ctx, dataset, 0); err == nil {
		snap.Parent, snap.Chunks = newest.Number, newest.Chunks
	}
	in, err := s.Begin(ctx, dataset)
	must(t, err)
	defer func() { must(t, in.Close()) }()
	builder := schema.NewChunkBuilder(memory.DefaultAllocator, sc)
	defer builder.Release()
	var pages schema.PageList
	contents := blobs(uint64(rows), rows)
	first := int(snap.Rows())
	for i := range rows {
		label := array.NewStringBuilder(memory.DefaultAllocator)
		label.Append(fmt.Sprint("row ", first+i))
		column := label.NewArray()
		meta := array.NewRecord(arrow.NewSchema(schema.MetaFields(sc), nil), []arrow.Array{column}, 1)
		refs := make([]*schema.BlobRef, 2)
		for col := range refs {
			if i%5 == 2+col {
				continue
			}
			data := contents[(i+3*col)%rows]
			ref := schema.RefOf(data)
			clear(ref.Key[:])
			copy(ref.Key[:], address)
			binary.BigEndian.PutUint64(ref.Key[16:], uint64(2*(first+i)+col+1))
			s.cells[ref.Key] = data
			refs[col] = &ref
		}
		must(t, builder.Append(schema.SampleID("theirs", fmt.Sprint(first+i)), meta, 0, refs))
		meta.Release()
		column.Release()
		label.Release()
		if i == rows/2 || i == rows-1 {
			data, page, err := builder.Finish()
			must(t, err)
			page.BlobRef, err = in.Put(ctx, data)
			must(t, err)
			pages.Add(page)
		}
	}
	data, chunk := pages.Finish()
	chunk.BlobRef, err = in.Put(ctx, data)
	must(t, err)
	snap.Chunks = append(slices.Clone(snap.Chunks), chunk)
	snap.Splits = []schema.Split{{Name: "train", Ranges: []schema.Range{{Start: 0, End: snap.Rows()}}}}
	made, err := in.Commit(ctx, snap)
	must(t, err)
	return made
}

// contents is each row of a snapshot: its id, its label, and what its cells hold.
func contents(t *testing.T, s store.Store, snap *schema.Snapshot) []string {
	t.Helper()
	var list []string
	get := func(ref schema.BlobRef) (schema.Blob, error) { return s.Get(t.Context(), ref) }
	for _, c := range snap.Chunks {
		must(t, schema.EachPage(snap, c, get, func(_ schema.Chunk, _ int64, m *schema.Manifest) error {
			labels, err := m.Column("label")
			if err != nil {
				return err
			}
			for row := range m.Rows() {
				text := fmt.Sprintf("%x %s", m.ID(row), labels[0].ValueStr(int(row)))
				for col := range 2 {
					ref, ok := m.Blob(col, row)
					if !ok {
						text += " null"
						continue
					}
					b, err := s.Get(t.Context(), ref)
					if err != nil {
						return err
					}
					text += fmt.Sprintf(" %x", schema.RefOf(b.Bytes()).Key)
					err = ref.Check(b.Bytes())
					b.Release()
					if err != nil {
						return err
					}
				}
				list = append(list, text)
			}
			return nil
		}))
	}
	return list
}

// TestCopyByValue: a copy of what is attached has the same rows and needs the tables no more; it is
// stopped on the way, made again, and made of the next snapshot too, of which only what is new is read.
func TestCopyByValue(t *testing.T) {
	from := openTables(t, "from")
	one, two := from.attach(t, "d", 60), from.attach(t, "d", 30)
	was := [][]string{contents(t, from, one), contents(t, from, two)}
	to := open(t, filepath.Join(t.TempDir(), "to"))
	stops := 0
	for {
		ctx, stop := context.WithCancel(t.Context())
		from.stop, from.left = stop, 20+5*stops
		_, err := maintenance.Copy(ctx, from, to, []*schema.Snapshot{one}, maintenance.CopyOptions{Workers: 2})
		stop()
		if err == nil {
			break
		}
		if !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		if stops++; stops > 100 {
			t.Fatal("it never comes to its end")
		}
	}
	// While the second is copied, somebody drops the first and collects: what both have is the second's own by then.
	from.left = 1
	from.stop = func() {
		must(t, to.Drop(t.Context(), "d", 1))
		_, err := to.GC(t.Context(), store.GCOptions{}, nil)
		must(t, err)
	}
	clear(from.read)
	done, err := maintenance.Copy(t.Context(), from, to, []*schema.Snapshot{one, two}, maintenance.CopyOptions{})
	must(t, err)
	if stops < 3 || !done.Snapshots[0].There || done.Snapshots[1].There {
		t.Errorf("after %d stops: %s", stops, asJSON(t, done))
	}
	if len(from.read) == 0 || len(from.read) > 60 {
		t.Errorf("%d cells were read for the 30 rows that are new", len(from.read))
	}
	again, err := maintenance.Copy(t.Context(), from, to, []*schema.Snapshot{two}, maintenance.CopyOptions{})
	if err != nil || again.Sent != 0 || !again.Snapshots[0].There {
		t.Errorf("again: %s, %v", asJSON(t, again), err)
	}
	back, err := to.Snapshot(t.Context(), "d", 2)
	must(t, err)
	if got := contents(t, to, back); !slices.Equal(got, was[1]) {
		t.Errorf("the rows are\n%v, were\n%v", got, was[1])
	}
	if !back.Created.Equal(two.Created) || back.Parent != 1 || back.Source != two.Source ||
		asJSON(t, back.Splits) != asJSON(t, two.Splits) {
		t.Errorf("it became %s of %s", asJSON(t, back), asJSON(t, two))
	}
	found, err := maintenance.Verify(t.Context(), scopeOf(t, to, 0), maintenance.VerifyOptions{})
	if err != nil || len(found.Damaged) > 0 {
		t.Errorf("verify: %s, %v", asJSON(t, found), err)
	}
	if _, err := maintenance.Copy(t.Context(), to, open(t, filepath.Join(t.TempDir(), "third")), []*schema.Snapshot{back},
		maintenance.CopyOptions{}); err != nil {
		t.Errorf("the copy is copied: %v", err)
	}
}

// TestCopyByValueChanged: a cell that is not what it was when it was attached ends the copy.
func TestCopyByValueChanged(t *testing.T) {
	from := openTables(t, "from")
	snap := from.attach(t, "d", 20)
	for key, data := range from.cells {
		if len(data) > 2 {
			from.cells[key] = append([]byte{data[0] ^ 1}, data[1:]...)
			break
		}
	}
	to := open(t, filepath.Join(t.TempDir(), "to"))
	for _, opts := range []maintenance.CopyOptions{{}, {Renumber: true}} {
		if _, err := maintenance.Copy(t.Context(), from, to, []*schema.Snapshot{snap}, opts); !errors.Is(err,
			schema.ErrDataLoss) {
			t.Errorf("%+v: %v", opts, err)
		}
	}
	if list, err := to.Datasets(t.Context()); err != nil || len(list) > 0 {
		t.Errorf("there are %v, %v", list, err)
	}
}

// TestCopyByReference: the manifests stay as they are; each cell is read through the target, and has to be
// there what it was.
func TestCopyByReference(t *testing.T) {
	from := openTables(t, "from")
	snap := from.attach(t, "d", 25)
	opts := maintenance.CopyOptions{Attached: maintenance.ByReference}
	if _, err := maintenance.Copy(t.Context(), from, open(t, filepath.Join(t.TempDir(), "local")),
		[]*schema.Snapshot{snap},
		opts); !errors.Is(err, schema.ErrInvalid) {
		t.Errorf("a target that reaches no table: %v", err)
	}
	to := referring{openTables(t, "to")}
	_, err := maintenance.Copy(t.Context(), from, to, []*schema.Snapshot{snap}, opts)
	if !errors.Is(err, schema.ErrDataLoss) {
		t.Errorf("a target with other rows in the table: %v", err)
	}
	to.cells = from.cells
	clear(from.read)
	_, err = maintenance.Copy(t.Context(), from, to, []*schema.Snapshot{snap}, opts)
	must(t, err)
	if len(from.read) != 0 || len(to.read) != len(from.cells) || len(to.referred) != 1 || to.referred[0] != photos {
		t.Errorf("%d cells were read in the source and %d of %d in the target, which knows %v", len(from.read),
			len(to.read), len(from.cells), to.referred)
	}
	back, err := to.Snapshot(t.Context(), "d", 1)
	must(t, err)
	if asJSON(t, back) != asJSON(t, snap) || !slices.Equal(contents(t, from, snap), contents(t, to, back)) {
		t.Errorf("it became %s of %s", asJSON(t, back), asJSON(t, snap))
	}
}
