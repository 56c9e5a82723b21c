package peer

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"bowstring/fetch/peers"
	"bowstring/schema"
)

// recorded returns the frames that a program of protocol 1 has sent, by name: they never change.
func recorded(t *testing.T) map[string][]byte {
	t.Helper()
	text, err := os.ReadFile("testdata/protocol1.txt")
	if err != nil {
		t.Fatal(err)
	}
	frames := map[string][]byte{}
	for line := range strings.Lines(string(text)) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok || name == "#" {
			continue
		}
		if frames[name], err = hex.DecodeString(value); err != nil {
			t.Fatal(err)
		}
	}
	return frames
}

// recordedAsks are those of the recorded frame.
func recordedAsks() []Ask {
	asks := []Ask{
		{7, peers.Ask{Ref: schema.BlobRef{Size: 1000, Sum: 0x0102030405060708}, Snapshot: "d@1", Position: 5,
			Tenant: "t", Forward: true}},
		{8, peers.Ask{Ref: schema.BlobRef{Size: 0, Sum: 1}, Held: true}},
	}
	for i := range asks[0].Ref.Key {
		asks[0].Ref.Key[i] = byte(i)
	}
	return asks
}

// This program understands messages of protocol 1, and a program of protocol 1
// understands the messages that it gets.
func TestProtocol1(t *testing.T) {
	frames := recorded(t)
	var hello Hello
	want := Hello{Cluster: "c", Node: "x", Zone: "z", Protocols: []int{1}, Other: "y", Address: "10.0.0.1:8815",
		Nonce: bytes.Repeat([]byte{7}, nonceBytes)}
	if err := json.Unmarshal(frames["hello"], &hello); err != nil || agree(0, hello.Protocols) != 1 ||
		!reflect.DeepEqual(hello, want) {
		t.Errorf("hello %s: %+v, agreed on %d; %v", frames["hello"], hello, agree(0, hello.Protocols), err)
	}
	if b, err := json.Marshal(want); err != nil || !bytes.Equal(b, frames["hello"]) {
		t.Errorf("a hello is written as %s, %v; want %s", b, err, frames["hello"])
	}
	secret := []byte("what the nodes have in common...")
	talk := newSaid("/bowstring.Peers/Lend", []byte("binding"))
	talk.add(frames["hello"])
	talk.add(frames["challenge"])
	if got := append([]byte{KindProof}, talk.prove(asking, secret)...); !bytes.Equal(got, frames["proof"]) {
		t.Errorf("a proof is %x, want %x", got, frames["proof"])
	}
	talk.add(frames["proof"])
	names := frames["answer"][proofBytes:]
	talk.add(names)
	if got := append(talk.prove(answering, secret), names...); !bytes.Equal(got, frames["answer"]) {
		t.Errorf("an answer is %x, want %x", got, frames["answer"])
	}
	var got []Ask
	if err := ParseAsks(frames["asks"], func(a Ask) error {
		got = append(got, a)
		return nil
	}); err != nil || !slices.Equal(got, recordedAsks()) {
		t.Errorf("asks are read as %+v, %v", got, err)
	}
	if b := AppendAsks(nil, recordedAsks()); !bytes.Equal(b, frames["asks"]) {
		t.Errorf("asks are written as\n%x, want\n%x", b, frames["asks"])
	}
	answers, err := readAnswers(bytes.NewReader(frames["answers"]), len(frames["answers"]))
	if err != nil || !slices.Equal(answers, []Answer{{7, Here, 3}, {8, Failed, 2}}) {
		t.Errorf("answers are read as %+v, %v", answers, err)
	}
}

// Two nodes use the protocol that both support, if there is one.
func TestAgree(t *testing.T) {
	for _, test := range []struct {
		only   int
		theirs []int
		want   int
	}{
		{0, []int{99, 1}, 1}, {0, []int{1}, 1}, {0, []int{2, 99}, 0}, {0, nil, 0}, {2, []int{2, 1}, 2}, {2, []int{1}, 0},
	} {
		if got := agree(test.only, test.theirs); got != test.want {
			t.Errorf("held to %d, with %v: %d, want %d", test.only, test.theirs, got, test.want)
		}
	}
}
