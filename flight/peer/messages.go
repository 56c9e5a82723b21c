package peer

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"

	"bowstring/fetch/peers"
	"bowstring/schema"
)

const (
	// ReadMethod is the call by which a node reads blobs from another one.
	ReadMethod = "/bowstring.Peers/Lend"
	// WarmMethod is the call by which a node makes another one warm its part of a request.
	// It sends a Warm, and receives progress in the form of the action warm.
	WarmMethod = "/bowstring.Peers/Warm"
	// Protocol is the version of these messages. Nodes of different versions do not read
	// from each other. They read the store instead.
	Protocol = 1

	maxAsks = 256 // asks of one message
	// Lengths of the parts of messages: see AppendAsks and AppendAnswers.
	askBytes    = 4 + 32 + 8 + 8 + 2 + 2 + 8 + 4
	answersHead = 4
	answerBytes = 4 + 4 + 8
	maxName     = math.MaxUint16
)

// Warm is the request to warm a part, as JSON. The sending node has checked that the caller
// may read all of it.
type Warm struct {
	Request json.RawMessage `json:"request"` // with the number of the snapshot
	Tenant  string          `json:"tenant,omitempty"`
}

// Kinds of messages of the asking side, their first byte.
const (
	KindProof    = 'k' // a proof that the node knows the cluster's key, see Guest
	KindAsks     = 'f' // asks, see AppendAsks
	KindProgress = 'p' // progress of the node's streams, as JSON: a list of peers.Progress
)

// Ask is a request for one blob. Its ID is unique among the connection's requests without
// an answer.
type Ask struct {
	ID uint32
	peers.Ask
}

// Flags of an ask. Those that are not known are passed over.
const (
	flagForward = 1 << iota // peers.Ask.Forward
	flagHeld                // peers.Ask.Held
)

// AppendAsks appends a message of up to maxAsks asks:
//
//	kind   KindAsks
//	names  u16, and for each its length (u16) and bytes
//	asks   u16, and for each: id u32, key 32 bytes, size u64, checksum u64, the numbers of the
//	       snapshot's and the tenant's name u16, position u64, flags u32
//
// All numbers are little-endian. Name 0 is the empty one, and is not sent.
func AppendAsks(b []byte, asks []Ask) []byte {
	b = append(b, KindAsks)
	numbers, names := map[string]uint16{"": 0}, []string(nil)
	number := func(name string) uint16 {
		n, ok := numbers[name]
		if !ok {
			names = append(names, name)
			n = uint16(len(names))
			numbers[name] = n
		}
		return n
	}
	for i := range asks {
		number(asks[i].Snapshot)
		number(asks[i].Tenant)
	}
	b = binary.LittleEndian.AppendUint16(b, uint16(len(names)))
	for _, name := range names {
		name = name[:min(len(name), maxName)]
		b = binary.LittleEndian.AppendUint16(b, uint16(len(name)))
		b = append(b, name...)
	}
	b = binary.LittleEndian.AppendUint16(b, uint16(len(asks)))
	for i := range asks {
		a := &asks[i]
		b = binary.LittleEndian.AppendUint32(b, a.ID)
		b = append(b, a.Ref.Key[:]...)
		b = binary.LittleEndian.AppendUint64(b, uint64(a.Ref.Size))
		b = binary.LittleEndian.AppendUint64(b, uint64(a.Ref.Sum))
		b = binary.LittleEndian.AppendUint16(b, number(a.Snapshot))
		b = binary.LittleEndian.AppendUint16(b, number(a.Tenant))
		b = binary.LittleEndian.AppendUint64(b, uint64(a.Position))
		b = binary.LittleEndian.AppendUint32(b, a.flags())
	}
	return b
}

// flags returns the flags of an ask.
func (a *Ask) flags() (f uint32) {
	if a.Forward {
		f |= flagForward
	}
	if a.Held {
		f |= flagHeld
	}
	return f
}

// ParseAsks reads a message of asks and calls do with each, until do fails. It checks every
// length and name before use: the message comes from the network.
func ParseAsks(b []byte, do func(Ask) error) error {
	if len(b) == 0 || b[0] != KindAsks {
		return &schema.FieldError{Field: "message", Got: fmt.Sprintf("%d bytes of another kind", len(b)), Want: "asks"}
	}
	b = b[1:]
	broken := func(what string) error {
		return &schema.FieldError{Field: "asks", Got: fmt.Sprintf("%d bytes", len(b)), Want: what}
	}
	rest := b
	short := func() (n int, ok bool) {
		if len(rest) < 2 {
			return 0, false
		}
		n = int(binary.LittleEndian.Uint16(rest))
		rest = rest[2:]
		return n, true
	}
	count, ok := short()
	if !ok || count > 2*maxAsks {
		return broken(fmt.Sprintf("up to %d names", 2*maxAsks))
	}
	names := make([]string, 1, 1+count)
	for range count {
		n, ok := short()
		if !ok || n > len(rest) {
			return broken("names that are there")
		}
		names, rest = append(names, string(rest[:n])), rest[n:]
	}
	count, ok = short()
	if !ok || count > maxAsks || len(rest) != count*askBytes {
		return broken(fmt.Sprintf("up to %d asks of %d bytes", maxAsks, askBytes))
	}
	for ; count > 0; count, rest = count-1, rest[askBytes:] {
		var a Ask
		a.ID = binary.LittleEndian.Uint32(rest)
		copy(a.Ref.Key[:], rest[4:])
		a.Ref.Size = int64(binary.LittleEndian.Uint64(rest[36:]))
		a.Ref.Sum = schema.Sum(binary.LittleEndian.Uint64(rest[44:]))
		snapshot, tenant := int(binary.LittleEndian.Uint16(rest[52:])), int(binary.LittleEndian.Uint16(rest[54:]))
		a.Position = int64(binary.LittleEndian.Uint64(rest[56:]))
		if snapshot >= len(names) || tenant >= len(names) || a.Ref.Size < 0 || a.Ref.Size > peers.MaxBlob ||
			a.Position < 0 {
			return broken(fmt.Sprintf("names that are there, sizes up to %d and positions from 0 on", peers.MaxBlob))
		}
		a.Snapshot, a.Tenant = names[snapshot], names[tenant]
		flags := binary.LittleEndian.Uint32(rest[64:])
		a.Forward, a.Held = flags&flagForward != 0, flags&flagHeld != 0
		if err := do(a); err != nil {
			return err
		}
	}
	return nil
}

// Status is the kind of an answer.
type Status uint32

// Kinds of answers. Only Here is followed by a blob; all others are followed by a text that
// says why there is none:
//
//   - Failed: the read has failed, or for any other reason.
//   - Lost: the store has no such blob, or a damaged one.
//   - NotHeld: the blob was requested only if it is held, and it is not.
//   - Full: the node has sent as much as it may.
const (
	Failed Status = iota
	Here
	Lost
	NotHeld
	Full
)

// Answer is the head of an answer.
type Answer struct {
	ID     uint32
	Status Status
	Size   int // bytes that follow
}

// AppendAnswers appends the head of a message of answers: their number u32, and for each
// its id u32, status u32, and size u64. Their contents follow in the same order. A message
// without answers is a heartbeat: the node is alive and answers will come.
func AppendAnswers(b []byte, answers []Answer) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(len(answers)))
	for _, a := range answers {
		b = binary.LittleEndian.AppendUint32(b, a.ID)
		b = binary.LittleEndian.AppendUint32(b, uint32(a.Status))
		b = binary.LittleEndian.AppendUint64(b, uint64(a.Size))
	}
	return b
}

// AnswersBytes returns the length of the head of a message of n answers.
func AnswersBytes(n int) int { return answersHead + n*answerBytes }

// maxAnswers bounds the answers of a message. It bounds the memory of their heads.
const maxAnswers = 1 << 16

// readAnswers reads the head of a message of n bytes. It checks that the sizes fit into the
// message before any memory for blobs is allocated.
func readAnswers(r io.Reader, n int) ([]Answer, error) {
	var word [answersHead]byte
	if n < len(word) {
		return nil, errAnswers
	}
	if _, err := io.ReadFull(r, word[:]); err != nil {
		return nil, errAnswers
	}
	count := binary.LittleEndian.Uint32(word[:])
	if count > maxAnswers || int(count)*answerBytes > n-len(word) {
		return nil, errAnswers
	}
	head := make([]byte, int(count)*answerBytes)
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, errAnswers
	}
	left := uint64(n - len(word) - len(head))
	list := make([]Answer, count)
	for i := range list {
		a := head[i*answerBytes:]
		size := binary.LittleEndian.Uint64(a[8:])
		if size > left {
			return nil, errAnswers
		}
		left -= size
		list[i] = Answer{binary.LittleEndian.Uint32(a), Status(binary.LittleEndian.Uint32(a[4:])), int(size)}
	}
	return list, nil
}

// errAnswers ends the connection: the rest of the message cannot be interpreted.
var errAnswers = fmt.Errorf("%w: a node has sent answers that are broken", schema.ErrUnavailable)
