package tend

import (
	"context"
	"errors"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"bowstring/fetch/store"
	"bowstring/schema"
)

// Attached is what is made of blobs that are cells of other programs' tables.
type Attached string

const (
	// ByValue reads the cells and stores their bytes under the hashes of their content, with manifests that
	// say so: the copy needs the tables no more. It is the default.
	ByValue Attached = "value"
	// ByReference copies manifests as they are. The target has to reach the same tables, through which
	// each cell is read once and compared.
	ByReference Attached = "reference"
)

// attachment says which manifest chunks of a scope have cells of tables, and of which ones.
type attachment struct {
	chunks map[schema.Key]bool
	tables []store.AttachedTable // sorted, each once
}

var errEnough = errors.New("no further page is needed")

// attached looks at the first cell of each blob column of each chunk that is not null: a chunk is made by
// one import, or by one attachment, and its columns have no cells of two kinds.
func (s *Scope) attached(ctx context.Context) (attachment, error) {
	a := attachment{chunks: map[schema.Key]bool{}}
	addresses, ok := s.Source.(store.Addresser)
	if !ok {
		return a, nil
	}
	var mu sync.Mutex
	readers, ctx := errgroup.WithContext(ctx)
	readers.SetLimit(chunksAtOnce)
	for _, c := range s.chunks() {
		readers.Go(func() error {
			seen := map[int]bool{}
			columns := len(schema.BlobFields(c.snap.Schema))
			err := s.eachPage(ctx, c, nil, func(_ pageOf, m *schema.Manifest) error {
				for col := range columns {
					for row := int64(0); row < m.Rows() && !seen[col]; row++ {
						ref, ok := m.Blob(col, row)
						if !ok {
							continue
						}
						seen[col] = true
						if table, ok := addresses.Addressed(ref.Key); ok {
							mu.Lock()
							a.chunks[c.chunk().Key] = true
							if !slices.Contains(a.tables, table) {
								a.tables = append(a.tables, table)
							}
							mu.Unlock()
						}
					}
				}
				if len(seen) == columns {
					return errEnough
				}
				return nil
			})
			if errors.Is(err, errEnough) {
				return nil
			}
			return err
		})
	}
	err := readers.Wait()
	slices.SortFunc(a.tables, store.AttachedTable.Compare)
	return a, err
}

// rest is the scope without the chunks that have cells of tables.
func (s *Scope) rest(a attachment) Scope {
	rest := *s
	rest.Snapshots = nil
	for _, snap := range s.Snapshots {
		part := *snap
		part.Chunks = slices.DeleteFunc(slices.Clone(snap.Chunks), func(c schema.Chunk) bool { return a.chunks[c.Key] })
		rest.Snapshots = append(rest.Snapshots, &part)
	}
	return rest
}

// sameButAttached says whether a snapshot is what copying another by value makes of it: all is the same,
// but the manifest chunks that have cells of tables are of other bytes.
func sameButAttached(made, from *schema.Snapshot, a attachment) (bool, error) {
	if len(a.chunks) == 0 || len(made.Chunks) != len(from.Chunks) {
		return false, nil
	}
	x, y := *made, *from
	x.Chunks, y.Chunks = slices.Clone(made.Chunks), slices.Clone(from.Chunks)
	for i := range y.Chunks {
		if a.chunks[y.Chunks[i].Key] {
			x.Chunks[i].BlobRef, y.Chunks[i].BlobRef = schema.BlobRef{}, schema.BlobRef{}
			x.Chunks[i].PageBytes, y.Chunks[i].PageBytes = 0, 0
		}
	}
	return equal(&x, &y)
}
