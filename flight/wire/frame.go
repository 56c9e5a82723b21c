package wire

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/apache/arrow/go/v17/arrow"
	flatbuffers "github.com/google/flatbuffers/go"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec that everything but a frame goes through
	"google.golang.org/grpc/mem"

	"bowstring/schema"
	"bowstring/schema/ipc"
)

// The protobuf wire tags of FlightData's fields (Flight.proto): each is
// length-delimited.
const (
	tagDataHeader  = 2<<3 | 2
	tagAppMetadata = 3<<3 | 2
	tagDataBody    = 1000<<3 | 2
)

const (
	bufferAlignment = 64                    // of every buffer within the body
	maxBodyBytes    = math.MaxInt32 - 1<<20 // what fits a 2 GiB protobuf message beside its header
)

const (
	// InlineBytes is up to where a slice is copied: cheaper than a reference, and grpc counts none to so small a buffer.
	InlineBytes = 1 << 10
)

var zeros [bufferAlignment]byte

// Frame is one FlightData message ready for the wire: its protobuf fields as a list of
// slices. The large ones point at the bytes in their owner's memory.
//
// A frame owns its batch. It is sent once, by a lane, which knows when the batch can be
// released.
type Frame struct {
	pieces   []Piece
	batch    Releaser     // nil if every piece was copied
	left     atomic.Int32 // pieces in the batch that grpc has still to free
	released atomic.Bool
	adopted  bool  // grpc has the buffers and will free them, or drop them
	lane     *Lane // by which it is sent; nil before
	// resident is until when its pieces are known to be in memory; zero for always. It is set before grpc has them.
	resident time.Time

	sending bool // grpc's SendMsg has it; guarded by lane.conn.mu
	// How much of it grpc has written to a Conn, whose mu guards both.
	written int // whole pieces
	offset  int // bytes of the next one
}

// Releaser owns the memory of a frame's pieces: a schema.Batch, or an answer.
type Releaser interface{ Release() }

// Piece is a part of a frame.
type Piece struct {
	Bytes []byte
	Held  bool // points into the batch, not into the frame's own memory
}

// ownFrame makes a frame of bytes that nothing has to release.
func ownFrame(b []byte) *Frame { return &Frame{pieces: []Piece{{Bytes: b}}} }

// NewFrame makes a frame of pieces. Some pieces point into the batch. It takes the
// batch over. resident is until when its pieces are known to be in memory, zero for
// always; see FreshUntil.
func NewFrame(pieces []Piece, b Releaser, resident time.Time) *Frame {
	f := &Frame{pieces: pieces}
	held := int32(0)
	for i := range pieces {
		if pieces[i].Held {
			held++
		}
	}
	if held == 0 {
		b.Release()
		return f
	}
	f.batch, f.resident = b, resident
	f.left.Store(held)
	return f
}

// release releases the batch, once.
func (f *Frame) release() {
	if f.batch != nil && !f.released.Swap(true) {
		f.batch.Release()
	}
}

// Get implements mem.BufferPool; grpc takes nothing from a frame.
func (f *Frame) Get(n int) *[]byte {
	b := make([]byte, n)
	return &b
}

// Put implements mem.BufferPool: grpc calls it when it is done with a piece.
func (f *Frame) Put(*[]byte) {
	switch {
	case f.left.Add(-1) > 0:
	case f.lane != nil:
		f.lane.conn.retire(f)
	default:
		f.release()
	}
}

// buffers turns the frame over to grpc.
func (f *Frame) buffers() mem.BufferSlice {
	f.adopted = true
	out := make(mem.BufferSlice, len(f.pieces))
	for i := range f.pieces {
		p := &f.pieces[i]
		if p.Held {
			out[i] = mem.NewBuffer(&p.Bytes, f)
		} else {
			out[i] = mem.SliceBuffer(p.Bytes)
		}
	}
	return out
}

// copied is the frame in one piece of its own, and releases it. A page of its memory may
// have become unreadable.
func (f *Frame) copied() (mem.BufferSlice, error) {
	defer f.release()
	b := make([]byte, 0, f.Size())
	err := schema.Guard(func() error {
		for i := range f.pieces {
			b = append(b, f.pieces[i].Bytes...)
		}
		return nil
	})
	return mem.BufferSlice{mem.SliceBuffer(b)}, err
}

// discard releases a frame that grpc did not take. It is safe to call always.
func (f *Frame) discard() {
	if !f.adopted {
		f.release()
	}
}

// next returns b as part of its piece, if it is what follows what was written of
// the frame, and counts it as written; else nil.
func (f *Frame) next(b []byte) []byte {
	if f.written == len(f.pieces) {
		return nil
	}
	rest := f.pieces[f.written].Bytes[f.offset:]
	if len(b) > len(rest) || &b[0] != &rest[0] {
		return nil
	}
	if f.offset += len(b); len(b) == len(rest) {
		f.written, f.offset = f.written+1, 0
	}
	return rest[:len(b)]
}

// Size is the length of the message on the wire.
func (f *Frame) Size() int64 {
	var n int64
	for _, p := range f.pieces {
		n += int64(len(p.Bytes))
	}
	return n
}

// encoder turns batches of one schema into frames. It is not safe for
// concurrent use; its frames live independently of it.
type encoder struct {
	schema *arrow.Schema
	fb     *flatbuffers.Builder

	// The current batch; all are reused except small, which frames keep.
	nodes   [][2]int64 // length, null count
	buffers [][2]int64 // offset in the body, length
	pieces  []Piece
	small   []byte // small pieces and padding, copied together
	run     int    // where in small the bytes begin that no piece covers yet
	body    int64  // bytes so far
	// unchecked says that a buffer has blobs that have not been compared with their
	// references.
	unchecked bool
	aside     int64 // how long buffers are that go another way
}

// newEncoder returns an encoder of batches of a schema.
func newEncoder(s *arrow.Schema) *encoder {
	return &encoder{schema: s, fb: flatbuffers.NewBuilder(4 << 10)}
}

// schemaFrame is the message that opens a stream.
func (e *encoder) schemaFrame() (*Frame, error) {
	header, err := ipc.EncodeSchema(e.schema)
	if err != nil {
		return nil, err
	}
	return ownFrame(prefix(header, nil, -1)), nil
}

// batchFrame encodes a batch, except the bytes of buffers of at least aside bytes, which
// go another way. It takes the batch over, also when it fails.
func (e *encoder) batchFrame(b *schema.Batch, aside int64, appMetadata []byte, resident time.Time) (*Frame, error) {
	e.aside = aside
	// Small pieces are copied, and may be in a mapped file.
	if err := schema.Guard(func() error { return e.layout(b) }); err != nil {
		b.Release()
		return nil, err
	}
	e.pieces[0].Bytes = prefix(ipc.EncodeBatch(e.fb, int64(b.Rows), e.nodes, e.buffers, e.body), appMetadata, e.body)
	f := NewFrame(append([]Piece(nil), e.pieces...), b, resident)
	clear(e.pieces)
	return f, nil
}

// layout lists the batch's field nodes, buffers and pieces; the first piece is
// left free for the prefix.
func (e *encoder) layout(b *schema.Batch) error {
	if len(b.Columns) != e.schema.NumFields() {
		return fmt.Errorf("encoding a batch: it has %d columns, its schema %d", len(b.Columns), e.schema.NumFields())
	}
	e.nodes, e.buffers, e.pieces = e.nodes[:0], e.buffers[:0], append(e.pieces[:0], Piece{})
	e.small, e.run = make([]byte, 0, cap(e.small)), 0
	e.body, e.unchecked = 0, false
	for i := range b.Columns {
		if got, want := b.Columns[i].Len, b.Rows; got != want {
			return fmt.Errorf("encoding column %q: it has %d rows, the batch %d", e.schema.Field(i).Name, got, want)
		}
		e.vector(&b.Columns[i])
	}
	e.endRun()
	if e.unchecked {
		return errors.New("encoding a batch: blobs of it were not checked")
	}
	if e.body > maxBodyBytes {
		return fmt.Errorf("%w: a record batch of %d bytes is more than one Flight message can carry (%d); ask for a "+
			"smaller batch or batch_bytes",
			schema.ErrLimit, e.body, maxBodyBytes)
	}
	return nil
}

// vector appends a column depth first, as Arrow's IPC format orders it.
func (e *encoder) vector(v *schema.Vector) {
	e.nodes = append(e.nodes, [2]int64{int64(v.Len), int64(v.Nulls)})
	for i := range v.Buffers {
		start := e.body
		if v.Buffers[i].Len < e.aside {
			e.unchecked = e.unchecked || v.Buffers[i].Unchecked != nil
			for _, p := range v.Buffers[i].Pieces {
				e.piece(p)
			}
		}
		e.buffers = append(e.buffers, [2]int64{start, e.body - start})
		if pad := -e.body & (bufferAlignment - 1); pad > 0 {
			e.piece(zeros[:pad])
		}
	}
	for i := range v.Children {
		e.vector(&v.Children[i])
	}
}

// piece appends bytes of the body, by reference if they are worth it.
func (e *encoder) piece(b []byte) {
	e.body += int64(len(b))
	if len(b) <= InlineBytes {
		e.small = append(e.small, b...)
		return
	}
	e.endRun()
	e.pieces = append(e.pieces, Piece{Bytes: b[:len(b):len(b)], Held: true})
}

// endRun makes a piece of the small bytes since the last one. Should small
// grow later, the piece keeps the array that it points into.
func (e *encoder) endRun() {
	if n := len(e.small); n > e.run {
		e.pieces = append(e.pieces, Piece{Bytes: e.small[e.run:n:n]})
		e.run = n
	}
}

// prefix is the start of a FlightData message, up to where the body's bytes
// follow. A body < 0 is left out, as a schema message has none.
//
// The header is followed by as many zeros as let the body begin at a multiple
// of 64 in the message: readers of flatbuffers do not look behind the root
// table, and a client that keeps the message in one piece gets aligned
// buffers, where odd addresses would cost it a copy.
func prefix(header, appMetadata []byte, body int64) []byte {
	size := func(pad int) int {
		n := fieldSize(len(header) + pad)
		if len(appMetadata) > 0 {
			n += fieldSize(len(appMetadata))
		}
		if body >= 0 {
			n += 2 + uvarintSize(uint64(body))
		}
		return n
	}
	pad := 0
	if body > 0 {
		for pad < 2*bufferAlignment && size(pad)%bufferAlignment != 0 {
			pad++
		}
	}
	p := make([]byte, 0, size(pad))
	p = append(p, tagDataHeader)
	p = binary.AppendUvarint(p, uint64(len(header)+pad))
	p = append(p, header...)
	for ; pad > 0; pad-- {
		p = append(p, 0)
	}
	if len(appMetadata) > 0 {
		p = append(p, tagAppMetadata)
		p = binary.AppendUvarint(p, uint64(len(appMetadata)))
		p = append(p, appMetadata...)
	}
	if body >= 0 {
		p = binary.AppendUvarint(p, tagDataBody)
		p = binary.AppendUvarint(p, uint64(body))
	}
	return p
}

// fieldSize is the size of a length-delimited field with a one-byte tag.
func fieldSize(n int) int { return 1 + uvarintSize(uint64(n)) + n }

func uvarintSize(n uint64) int {
	var b [binary.MaxVarintLen64]byte
	return binary.PutUvarint(b[:], n)
}

// ProvenGRPC is the release of grpc with which this package was proven. It leans on things that grpc does not promise:
//
//   - without a write buffer, its transport writes the header of each DATA frame by itself, then the slices of the
//     message as SendMsg got them (Conn.Write);
//   - it frees each slice when it writes no more of it, or drops all of a message, as Lane says;
//   - its stream on the server has the field id, and the methods ReadMessageHeader and RecvCompress.
//
// With another release, a server uses none of that: see Plain.
const ProvenGRPC = "1.85.0"

// Plain reports whether this program has another release of grpc than the one that was proven. Connections, frames and
// receivers are plain then: a message is copied into one piece before grpc gets it, and is received by grpc, which knows
// no MessageTimeout.
func Plain() bool { return grpc.Version != ProvenGRPC }

// errTransport says that grpc is not the release whose transport this package knows.
var errTransport = errors.New("the transport of grpc is not the one that this server was made for")

// isPlain reports whether a call came by a plain connection, or by one that is not of this package.
func isPlain(ctx context.Context) bool {
	conn := ConnOf(ctx)
	return conn != nil && conn.plain
}

// codec hands frames to grpc as the scatter lists they are, and everything
// else to the protobuf codec. Marshalling a FlightData would copy each blob
// three times; a frame that leaves by a Conn copies none.
type codec struct {
	encoding.CodecV2
	plain bool
}

// ServerOptions make a server send frames by the connections of Listen. plain is as in Listening; limits are those of its
// receivers.
func ServerOptions(plain bool, limits Limits) []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ForceServerCodecV2(codec{encoding.GetCodecV2("proto"), plain}),
		grpc.WriteBufferSize(0), // connections gather what is written; see Conn
		grpc.MaxRecvMsgSize(limits.MaxMessageBytes + limits.MaxRequestBytes + requestSlack), // if receivers are plain
	}
}

// Uncompressed has grpc send the answers of a call as they are. It would compress them for a client that says that it
// compresses its requests, and read blobs for that by itself: no page of a file that cannot be read would be dealt with.
func Uncompressed(ctx context.Context) error {
	if !isPlain(ctx) {
		stream, ok := grpc.ServerTransportStreamFromContext(ctx).(interface{ RecvCompress() string })
		if !ok {
			return errTransport
		}
		if stream.RecvCompress() == "" {
			return nil
		}
	}
	if err := grpc.SetSendCompressor(ctx, encoding.Identity); err != nil && ctx.Err() == nil {
		return fmt.Errorf("sending answers uncompressed: %w", err)
	}
	return context.Cause(ctx)
}

// received is a message as it came, for plain receivers.
type received []byte

// Marshal implements encoding.CodecV2. grpc frees the buffers it returns.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	f, ok := v.(*Frame)
	switch {
	case !ok:
		return c.CodecV2.Marshal(v)
	case c.plain:
		return f.copied()
	}
	return f.buffers(), nil
}

// Unmarshal implements encoding.CodecV2.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	to, ok := v.(*received)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	*to = make([]byte, data.Len(), data.Len()+bodyAlign)
	data.CopyTo(*to)
	return nil
}
