package peering

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"os"
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

// oldAsks are those of the recorded frame.
func oldAsks() []Ask {
	asks := []Ask{
		{7, peers.Ask{Ref: schema.BlobRef{Size: 1000, Sum: 0x0102030405060708}, Snapshot: "d@1", Position: 5,
			Tenant: "t"}},
		{8, peers.Ask{Ref: schema.BlobRef{Size: 0, Sum: 1}}},
	}
	for i := range asks[0].Ref.Key {
		asks[0].Ref.Key[i] = byte(i)
	}
	return asks
}

// What a program of protocol 1 sends is understood, and what is sent to it, it understands.
func TestProtocol1(t *testing.T) {
	frames := recorded(t)
	var hello Hello
	if err := json.Unmarshal(frames["hello"], &hello); err != nil || Agree(0, hello.Protocols) != 1 {
		t.Errorf("hello %s: %+v, agreed on %d; %v", frames["hello"], hello, Agree(0, hello.Protocols), err)
	}
	var got []Ask
	if err := ParseAsks(frames["asks"], func(a Ask) error {
		got = append(got, a)
		return nil
	}); err != nil || !slices.Equal(got, oldAsks()) {
		t.Errorf("asks are read as %+v, %v", got, err)
	}
	flagged := oldAsks()
	flagged[0].Onward = true
	if b := AppendAsks(nil, flagged); !bytes.Equal(b, frames["asks"]) {
		t.Errorf("asks are written as\n%x, want\n%x", b, frames["asks"])
	}
	answers, err := readAnswers(bytes.NewReader(frames["answers"]), len(frames["answers"]))
	if err != nil || !slices.Equal(answers, []Answer{{7, Here, 3}, {8, Failed, 2}}) {
		t.Errorf("answers are read as %+v, %v", answers, err)
	}
	if Agree(0, []int{99, 2, 1}) != 2 || Agree(1, []int{2, 1}) != 1 || Agree(0, []int{99}) != 0 || Agree(0, nil) != 0 {
		t.Error("two nodes speak another protocol than the newest that both do")
	}
}

// Flags come out as they went in.
func TestFlags(t *testing.T) {
	asks := oldAsks()
	asks[0].Onward, asks[1].Held = true, true
	var got []Ask
	if err := ParseAsks(AppendFlagged(nil, asks), func(a Ask) error {
		got = append(got, a)
		return nil
	}); err != nil || !slices.Equal(got, asks) {
		t.Errorf("got %+v, %v", got, err)
	}
}
