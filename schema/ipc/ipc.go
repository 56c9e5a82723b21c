// Package ipc reads and writes the messages of the Arrow IPC format: schemas, record batches and dictionaries.
//
// The Arrow library's reader takes lengths, offsets and claims as they are, and copies every buffer; its writer aligns
// buffers to 8 bytes, and joins their pieces. Here each length is checked against the bytes that are there before
// anything is made of it, values are read where they lie, and what decompression takes is counted. Arrays that are read
// point into the message's body, which has to stay as it is for as long as they are used.
//
// The writer makes the header of a record batch from its field nodes and buffers; the body is the caller's to lay out.
// The message of a schema is left to the library.
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

// Error says what is wrong with a message.
type Error struct {
	What string
	// Limit says that the message is right, and asks for more than it may.
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
	// prefixBytes is what a message begins with in a stream of bytes: the continuation, and the length of its header.
	prefixBytes = 8
	// align is what values have to be aligned to.
	align = 8
)

// EndOfStream is what ends a stream of bytes.
var EndOfStream = []byte{0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0}

// header returns what the flatbuffer of a message says, and of which kind that is.
func header(b []byte) (kind byte, t flatbuffers.Table, body int64, err error) {
	msg := flatbuffers.Table{Bytes: b, Pos: flatbuffers.GetUOffsetT(b)}
	at := flatbuffers.UOffsetT(msg.Offset(slotHeader))
	if at == 0 {
		return 0, t, 0, broken("a message has no header")
	}
	msg.Union(&t, at)
	return msg.GetByteSlot(slotKind, 0), t, msg.GetInt64Slot(slotBodySize, 0), nil
}

// leadsOut makes an error of the panic of a flatbuffer that leads out of itself, which is read without checks.
func leadsOut(p any, err error) error {
	if p == nil {
		return err
	}
	if _, ok := p.(runtime.Error); !ok {
		panic(p)
	}
	return broken("the header of a message is broken: it leads out of itself")
}

// AppendMessage appends a message's header to a stream of bytes, followed by so many zeros that what comes next begins
// at a multiple of alignment from the stream's beginning.
func AppendMessage(b, header []byte, alignment int) []byte {
	pad := -(len(b) + prefixBytes + len(header)) & (alignment - 1)
	b = binary.LittleEndian.AppendUint32(b, continuation)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(header)+pad))
	b = append(b, header...)
	return append(b, make([]byte, pad)...)
}

// NextMessage splits the first message off a stream of bytes: its header, and what follows, which begins with the body.
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

// schemaPayload keeps the first payload that a writer makes: the schema.
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

// EncodeBatch builds the header of a record batch's message. nodes are the length and the count of nulls of each column
// and child, depth first, buffers where each begins in the body and its length. The result is valid until fb is used
// again.
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

// pairs writes a vector of structs of two int64.
func pairs(fb *flatbuffers.Builder, list [][2]int64) flatbuffers.UOffsetT {
	fb.StartVector(sizeofPair, len(list), 8)
	for i := len(list) - 1; i >= 0; i-- {
		fb.Prep(8, sizeofPair)
		fb.PrependInt64(list[i][1])
		fb.PrependInt64(list[i][0])
	}
	return fb.EndVector(len(list))
}
