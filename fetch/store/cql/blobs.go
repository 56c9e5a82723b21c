package cql

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gocql/gocql"
	"golang.org/x/sync/errgroup"

	"bowstring/fetch/store"
	"bowstring/schema"
)

// PartBytes is the size of every part of a blob except the last. It belongs to the format: readers compute the parts
// of a blob from its size.
const PartBytes = 1 << 20

// partsOf is the number of parts of a blob of a size. An empty blob has one empty part,
// so that it can be found.
func partsOf(size int64) int { return int(max(1, (size+PartBytes-1)/PartBytes)) }

// partsAtOnce bounds the parts of one blob that are read or written at once, so that a
// large blob does not fill the connections.
const partsAtOnce = 16

// maxBlob bounds the memory that Get allocates for a reference. A damaged reference could
// name any size.
const maxBlob = 1 << 40

const (
	selectPart = "SELECT data FROM " + tableParts + " WHERE key = ? AND part = ?"
	insertPart = "INSERT INTO " + tableParts + " (key, part, data) VALUES (?, ?, ?)"
	deletePart = "DELETE FROM " + tableParts + " WHERE key = ? AND part = ?"
)

// Get implements store.Store. It reads the parts of a large blob in parallel. If the blob has another size than ref,
// it returns a schema.ErrDataLoss.
func (s *Store) Get(ctx context.Context, ref schema.BlobRef) (schema.Blob, error) {
	if err := s.enter(ctx); err != nil {
		return schema.Blob{}, err
	}
	defer s.life.RUnlock()
	if ref.Size < 0 || ref.Size >= maxBlob {
		return schema.Blob{}, fmt.Errorf("%w: blob %s of %d bytes", schema.ErrInvalid, ref.Key, ref.Size)
	}
	b, err := s.get(ctx, ref)
	if err != nil {
		return schema.Blob{}, err
	}
	s.reads.Add(1)
	s.readBytes.Add(ref.Size)
	return b, nil
}

// get reads a blob, or a cell of an attached table.
func (s *Store) get(ctx context.Context, ref schema.BlobRef) (schema.Blob, error) {
	if t := s.foreign.of(ref.Key); t != nil {
		return s.getForeign(ctx, t, ref)
	}
	// A key that is no address of a known table is a hash.
	b, err := s.readParts(ctx, ref)
	if errors.Is(err, schema.ErrNotFound) {
		// Another process may have attached it since the list was read.
		if err := s.loadAttached(ctx); err != nil {
			return schema.Blob{}, err
		}
		if t := s.foreign.of(ref.Key); t != nil {
			return s.getForeign(ctx, t, ref)
		}
	}
	return b, err
}

// readParts reads a blob of the store's own tables. When it has returned, no goroutine
// writes to the blob's memory, so a failed read can release it.
func (s *Store) readParts(ctx context.Context, ref schema.BlobRef) (schema.Blob, error) {
	n := partsOf(ref.Size)
	if n == 1 {
		return s.readOne(ctx, &ref)
	}
	buf, err := s.buffers.take(ref.Size)
	if err != nil {
		return schema.Blob{}, err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(partsAtOnce)
	for i := range n {
		g.Go(func() error {
			dst := buf.data[i*PartBytes : min((i+1)*PartBytes, len(buf.data))]
			r := newReading(ctx, selectPart, len(dst))
			r.dst = dst
			return s.readPart(r, &ref, i)
		})
	}
	if err := g.Wait(); err != nil {
		buf.Unpin()
		return schema.Blob{}, err
	}
	return schema.NewBlob(buf.data, buf), nil
}

// readOne reads a blob of one part, in one statement with others if possible.
func (s *Store) readOne(ctx context.Context, ref *schema.BlobRef) (schema.Blob, error) {
	// If many reads are in flight to a host, several share one statement.
	b, by, err := s.gathering.read(ctx, ref)
	switch {
	case b != nil:
		return schema.NewBlob(b.data, b), nil
	case err != nil:
		return schema.Blob{}, fmt.Errorf("read blob %s: %w", ref.Key, err)
	}
	r := newReading(ctx, selectPart, int(ref.Size))
	r.route.attempt = by.attempt
	r.arena = &s.buffers
	err = s.readPart(r, ref, 0)
	by.end(err)
	return r.blob(err)
}

// readPart reads one part. If the replica does not have it, a quorum is asked, in this
// datacenter first: a blob counts as missing only if a quorum lacks it.
func (s *Store) readPart(r *reading, ref *schema.BlobRef, part int) error {
	r.key = boundKey(ref.Key)
	r.route.draw = drawOf(&ref.Key, part)
	r.bind(&r.key, part)
	levels := [...]gocql.Consistency{s.config.Read, gocql.LocalQuorum, gocql.Quorum}
	for i, level := range levels {
		if i > 0 && level == levels[i-1] {
			continue
		}
		err := s.readCell(s.db, r, level, tableParts)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, gocql.ErrNotFound):
			// The replica may have missed the write: blobs are written at a quorum.
		default:
			return fmt.Errorf("read blob %s: %w", ref.Key, err)
		}
	}
	return fmt.Errorf("%w: the store has no blob %s (part %d of %d, %s)",
		schema.ErrNotFound, ref.Key, part+1, partsOf(ref.Size), s.where(nil, tableParts))
}

// reading is a read of one cell: its context, the values of its statement, the order of hosts, and the destination.
// It is a single allocation, because there is one for each blob.
type reading struct {
	context.Context //nolint:containedctx // the reading is a context itself

	stmt  string
	args  [2]any
	bound int // how many of args are used
	key   boundKey

	route route

	// A cell of the wanted length goes to dst or, if dst is nil, to a buffer that is taken when the cell arrives. So
	// reads in flight need no memory, and the buffer used is the last one released, which is still in the CPU cache.
	want   int
	dst    []byte
	arena  *arena
	buffer *buffer // nil if none was taken
	fault  error   // the error of taking one

	into [1]any // the reading itself
	size int    // of the cell
	null bool
}

// newReading returns a reading of a cell of want bytes. The caller binds its values.
func newReading(ctx context.Context, stmt string, want int) *reading {
	r := &reading{Context: ctx, stmt: stmt, want: want}
	r.route.attempt = store.AttemptFrom(ctx)
	r.into[0] = r
	return r
}

// bind sets the values of the statement.
func (r *reading) bind(args ...any) { r.bound = copy(r.args[:], args) }

// Value implements context.Context. It passes the reading to the policy that chooses the host.
func (r *reading) Value(key any) any {
	if key == (routeKey{}) {
		return r
	}
	return r.Context.Value(key)
}

// UnmarshalCQL implements gocql.Unmarshaler. The driver's buffer is only valid during the call.
func (r *reading) UnmarshalCQL(_ gocql.TypeInfo, data []byte) error {
	r.null = data == nil
	r.size = len(data)
	if r.null || r.size != r.want {
		return nil
	}
	if r.dst == nil {
		if r.buffer, r.fault = r.arena.take(int64(r.want)); r.fault != nil {
			return r.fault
		}
		r.dst = r.buffer.data
	}
	copy(r.dst, data)
	return nil
}

// blob returns the blob that was read, or releases its memory and returns err.
func (r *reading) blob(err error) (schema.Blob, error) {
	if err == nil {
		return schema.NewBlob(r.buffer.data, r.buffer), nil
	}
	if r.buffer != nil {
		r.buffer.Unpin()
	}
	return schema.Blob{}, err
}

// boundKey is a key as a value for a statement; a slice would be copied.
type boundKey schema.Key

// MarshalCQL implements gocql.Marshaler.
func (k *boundKey) MarshalCQL(gocql.TypeInfo) ([]byte, error) { return k[:], nil }

// readRetry tries one more host at once if a host fails, for example because its connection was cut. The caller
// pauses and retries.
var readRetry = movingRetries(1)

// readCell reads a cell, which must have the wanted length, into the reading's
// destination. If there is no row, it returns gocql.ErrNotFound. A cell of another length
// is a schema.ErrDataLoss.
func (s *Store) readCell(session *gocql.Session, r *reading, level gocql.Consistency, table string) error {
	r.size, r.null = 0, false
	q, made := r.query(session)
	iter := q.Consistency(level).RetryPolicy(readRetry).PageSize(0).Iter()
	host := iter.Host()
	// Closing the iterator gives the error of the request, if there was one.
	found := iter.Scan(r.into[:]...)
	err := iter.Close()
	r.route.end(err)
	made.Release()
	switch {
	case r.fault != nil:
		return r.fault
	case err != nil:
		return s.cellFault(r.Context, err, host, table)
	case !found || r.null:
		return gocql.ErrNotFound
	case r.size != r.want:
		return fmt.Errorf("%w: %s: a cell has %d bytes, the manifest says %d", schema.ErrDataLoss, s.where(host, table),
			r.size, r.want)
	}
	return nil
}

// query makes a query with the reading as its context. The caller releases made, which may differ from q: gocql can
// only give a query a context by copying it, and the copy shares the original's pooled resources.
func (r *reading) query(session *gocql.Session) (q, made *gocql.Query) {
	type fork interface {
		QueryWithContext(ctx context.Context, stmt string, values ...any) *gocql.Query
	}
	if f, ok := any(session).(fork); ok {
		q = f.QueryWithContext(r, r.stmt, r.args[:r.bound]...)
		return q, q
	}
	made = session.Query(r.stmt, r.args[:r.bound]...)
	return made.WithContext(r), made
}

// prepareWithin bounds the wait for hosts to prepare statements.
const prepareWithin = 2 * time.Second

// Prepare does in advance what would cost the first reader some round trips. Each host
// prepares the statements of reads. The row of this process is written. Memory of that
// many bytes is mapped and touched. The reads are of names that cannot exist.
func (s *Store) Prepare(ctx context.Context, memory int64) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.life.RUnlock()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.buffers.touch(memory) })
	g.Go(func() error { return s.Ready(ctx) })
	g.Go(func() error {
		_, err := database{s}.Peek(ctx, " ", " ")
		return err
	})
	g.Go(func() error {
		r := newReading(ctx, selectPart, 0)
		r.bind(&r.key, 0)
		if err := s.readCell(s.db, r, s.config.Read, tableParts); !errors.Is(err, gocql.ErrNotFound) {
			return err
		}
		return nil
	})
	g.Go(func() error {
		s.prepareHosts(ctx)
		return nil
	})
	return g.Wait()
}

// prepareHosts makes the preferred hosts prepare the statements of reads. The driver lets each host prepare a
// statement at its first use there, so a host that fails here, or is too slow, prepares for its first reader.
func (s *Store) prepareHosts(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, prepareWithin)
	defer cancel()
	key := boundKey{}
	statements := [][]any{
		{selectPartition, " "},
		{selectRows, " ", []string{" "}},
		{selectVersion, " "},
		{selectPart, &key, 0},
	}
	if s.gathering != nil && s.gathering.keys() > 1 {
		statements = append(statements, []any{selectGathered, keysOf([]*joined{{ref: schema.BlobRef{}}})})
	}
	var g errgroup.Group
	for h := range s.steering.known() {
		if h.info.DataCenter() != s.dc {
			continue
		}
		for _, st := range statements {
			g.Go(func() error {
				q := s.db.Query(st[0].(string), st[1:]...).Consistency(gocql.LocalOne).
					RetryPolicy(movingRetries(0)).WithContext(asking{ctx, h})
				if err := q.Iter().Close(); err != nil {
					s.log.DebugContext(ctx, "a statement was not prepared ahead of its use", "host", s.steering.name(h.info),
						"statement", st[0], "error", err)
				}
				return nil
			})
		}
	}
	_ = g.Wait() // the functions return no error
}
