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
	// ReadMethod is the call by which a node asks another one for blobs.
	ReadMethod = "/bowstring.Peers/Lend"
	// WarmMethod is the call by which a node has another one warm its part of a request: it sends a Warm, and gets
	// progress, as the action warm sends it.
	WarmMethod = "/bowstring.Peers/Warm"
	// Protocol is the version of what is said on it. Nodes of different versions do not ask each other: they read the
	// store instead.
	Protocol = 1

	maxAsks     = 256 // in a message
	askBytes    = 4 + 32 + 8 + 8 + 2 + 2 + 8 + 4
	answersHead = 4
	answerBytes = 4 + 4 + 8
	maxName     = math.MaxUint16
)

// Warm is what a node is asked to warm, as JSON. The node that asks has made sure that the caller may read it, all of
// it.
type Warm struct {
	Request json.RawMessage `json:"request"` // whose snapshot has a number
	Tenant  string          `json:"tenant,omitempty"`
}

// Kinds of messages of the asking side, their first byte.
const (
	KindProof    = 'k' // that the node knows the cluster's key, see Guest
	KindAsks     = 'f' // asks, see AppendAsks
	KindProgress = 'p' // what the node's streams do, as JSON: a list of peers.Progress
)

// Ask is a blob that is asked for. Each has a number of its own among those of its
// stream that were not answered.
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

func (a *Ask) flags() (f uint32) {
	if a.Forward {
		f |= flagForward
	}
	if a.Held {
		f |= flagHeld
	}
	return f
}

// ParseAsks reads a message of asks, and gives each to do until that fails.
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

// Status says what an answer is.
type Status uint32

// The kinds of an answer: a text that says why there is no blob, the blob, or a text that
// says that the store has none, or a damaged one; that what was wanted if it is held is
// not; and that the node has sent as much as it may.
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
	Size   int // of what follows, in bytes
}

// AppendAnswers appends the head of a message of answers: how many there are u32, and for
// each its id u32, status u32, and size u64. Their contents follow in the same order. A
// message of no answers says that the node is there, and has answers to come.
func AppendAnswers(b []byte, answers []Answer) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(len(answers)))
	for _, a := range answers {
		b = binary.LittleEndian.AppendUint32(b, a.ID)
		b = binary.LittleEndian.AppendUint32(b, uint32(a.Status))
		b = binary.LittleEndian.AppendUint64(b, uint64(a.Size))
	}
	return b
}

// AnswersBytes is how long the head of a message of n answers is.
func AnswersBytes(n int) int { return answersHead + n*answerBytes }

// maxAnswers is how many answers a message may have.
const maxAnswers = 1 << 16

// readAnswers reads the head of a message of n bytes.
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

var errAnswers = fmt.Errorf("%w: a node has sent answers that are broken", schema.ErrUnavailable)
