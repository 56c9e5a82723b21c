// Package ipc reads and writes the messages of the Arrow IPC format: schemas, record batches and dictionaries.
//
// The Arrow library's reader trusts lengths and offsets, and copies every buffer. Its
// writer aligns buffers to 8 bytes, and joins their pieces. Here each length is checked
// against the existing bytes before anything is allocated, values are read in place, and
// the memory of decompression is counted. Arrays that were read point into the message's
// body, which must not change while they are used.
//
// The writer makes the header of a record batch from its field nodes and buffers; the
// caller lays out the body. Schema messages are left to the library.
//
// Begin with [Reader] for streams, [Options.ReadColumns] for single batches, and
// [EncodeBatch] for writing.
//
// Errors about a message are an [*Error]. Others come from a [Memory].
package ipc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/ipc"
	flatbuffers "github.com/google/flatbuffers/go"
)

// Error is a defect of a message.
type Error struct {
	What string
	// Limit marks a message that is correct but exceeds a limit.
	Limit bool
}

// Error implements error.
func (e *Error) Error() string { return e.What }

func broken(format string, args ...any) error { return &Error{What: fmt.Sprintf(format, args...)} }
func tooMuch(format string, args ...any) error {
	return &Error{What: fmt.Sprintf(format, args...), Limit: true}
}

// Kinds of messages: MessageHeader of Message.fbs.
const (
	kindSchema     = 1
	kindDictionary = 2
	kindBatch      = 3
)

const (
	metadataV5       = 4  // MetadataVersion.V5
	messageSlots     = 5  // of a Message
	recordBatchSlots = 5  // of a RecordBatch
	sizeofPair       = 16 // FieldNode and Buffer are both two int64

	slotKind     = 6
	slotHeader   = 8
	slotBodySize = 10

	continuation = 0xffffffff
	// prefixBytes is the length of a message's prefix in a byte stream: the continuation
	// mark, and the length of its header.
	prefixBytes = 8
	// align is the alignment of values in bytes.
	align = 8
)

// EndOfStream ends a byte stream.
var EndOfStream = []byte{0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0}

// header parses the flatbuffer of a message: its kind, its header table and the length of
// its body.
func header(b []byte) (kind byte, t flatbuffers.Table, body int64, err error) {
	msg := flatbuffers.Table{Bytes: b, Pos: flatbuffers.GetUOffsetT(b)}
	at := flatbuffers.UOffsetT(msg.Offset(slotHeader))
	if at == 0 {
		return 0, t, 0, broken("a message has no header")
	}
	msg.Union(&t, at)
	return msg.GetByteSlot(slotKind, 0), t, msg.GetInt64Slot(slotBodySize, 0), nil
}

// leadsOut turns the panic of a malformed flatbuffer into an error. The flatbuffers
// library reads tables without bounds checks of its own, so a wrong offset panics with a
// runtime error.
func leadsOut(p any, err error) error {
	if p == nil {
		return err
	}
	if _, ok := p.(runtime.Error); !ok {
		panic(p)
	}
	return broken("the header of a message is broken: it leads out of itself")
}

// AppendMessage appends a message's header to a byte stream, padded with zeros so that
// the following bytes begin at a multiple of alignment.
func AppendMessage(b, header []byte, alignment int) []byte {
	pad := -(len(b) + prefixBytes + len(header)) & (alignment - 1)
	b = binary.LittleEndian.AppendUint32(b, continuation)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(header)+pad))
	b = append(b, header...)
	return append(b, make([]byte, pad)...)
}

// NextMessage splits the first message off a byte stream: its header, and the following
// bytes, which begin with the body.
func NextMessage(b []byte) (header, rest []byte, err error) {
	if len(b) < prefixBytes || binary.LittleEndian.Uint32(b) != continuation {
		return nil, nil, broken("no message of an Arrow stream is where one should be")
	}
	n := int64(binary.LittleEndian.Uint32(b[4:]))
	if n < 8 || n > int64(len(b)-prefixBytes) {
		return nil, nil, broken("a message has %d bytes where %d are left", n, len(b)-prefixBytes)
	}
	return b[prefixBytes : prefixBytes+n], b[prefixBytes+n:], nil
}

// schemaPayload captures the first payload that a writer makes, the schema. The library
// has no function for that.
type schemaPayload struct{ header []byte }

func (*schemaPayload) Start() error { return nil }
func (*schemaPayload) Close() error { return nil }
func (s *schemaPayload) WritePayload(p ipc.Payload) error {
	meta := p.Meta()
	defer meta.Release()
	if s.header == nil {
		s.header = append([]byte(nil), meta.Bytes()...)
	}
	return nil
}

// EncodeSchema returns the header of a schema's message.
func EncodeSchema(s *arrow.Schema) ([]byte, error) {
	var p schemaPayload
	if err := ipc.NewWriterWithPayloadWriter(&p, ipc.WithSchema(s)).Close(); err != nil {
		return nil, fmt.Errorf("encoding the schema: %w", err)
	}
	if p.header == nil {
		return nil, errors.New("encoding the schema: the writer made no schema message")
	}
	return p.header, nil
}

// EncodeBatch builds the header of a record batch's message. nodes are length and null
// count of each column and child, depth first; buffers are the offset in the body and the
// length of each buffer. The result is valid until fb is used again.
func EncodeBatch(fb *flatbuffers.Builder, rows int64, nodes, buffers [][2]int64, body int64) []byte {
	fb.Reset()
	nodesAt := pairs(fb, nodes)
	buffersAt := pairs(fb, buffers)
	fb.StartObject(recordBatchSlots)
	fb.PrependInt64Slot(0, rows, 0)
	fb.PrependUOffsetTSlot(1, nodesAt, 0)
	fb.PrependUOffsetTSlot(2, buffersAt, 0)
	batch := fb.EndObject()
	fb.StartObject(messageSlots)
	fb.PrependInt16Slot(0, metadataV5, 0)
	fb.PrependByteSlot(1, kindBatch, 0)
	fb.PrependUOffsetTSlot(2, batch, 0)
	fb.PrependInt64Slot(3, body, 0)
	fb.Finish(fb.EndObject())
	return fb.FinishedBytes()
}

// pairs writes a vector of structs of two int64, backwards as flatbuffers require.
func pairs(fb *flatbuffers.Builder, list [][2]int64) flatbuffers.UOffsetT {
	fb.StartVector(sizeofPair, len(list), 8)
	for i := len(list) - 1; i >= 0; i-- {
		fb.Prep(8, sizeofPair)
		fb.PrependInt64(list[i][1])
		fb.PrependInt64(list[i][0])
	}
	return fb.EndVector(len(list))
}
