// Package shmtest has a client of the sockets of flight/shm, for tests. It is written
// from docs/protocol.md and shares no code with the server. A mistake in one of them is
// therefore not repeated in the other.
package shmtest

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Guest is a client at the socket. One goroutine uses it.
type Guest struct {
	Conn *net.UnixConn
	// Ring and Bytes are the name and size that the server granted, and File is the
	// memory to map. If the server refused, Ring is empty and Refused has the reason.
	Ring    string
	Bytes   int64
	File    *os.File
	Refused string
}

// nonce may be constant, because a test has no secrets.
var nonce = strings.Repeat("0f", 16)

// Message is a message of either side before there is a ring. Each is one packet.
type Message struct {
	Version int    `json:"version,omitempty"`
	Caller  string `json:"caller,omitempty"`
	Server  string `json:"server,omitempty"`
	Nonce   string `json:"nonce,omitempty"`
	Proof   string `json:"proof,omitempty"`
	Ring    string `json:"ring,omitempty"`
	Bytes   int64  `json:"bytes,omitempty"`
	Error   string `json:"error,omitempty"`
}

// Proof returns the proof that the server or the client knows the key: an HMAC of the
// protocol, the side and both nonces. The side prevents that one side's proof is sent
// back to it.
func Proof(key []byte, end, ofClient, ofServer string) string {
	h := hmac.New(sha256.New, key)
	_, _ = fmt.Fprintf(h, "bowstring shm 2 %s %s %s", end, ofClient, ofServer)
	return hex.EncodeToString(h.Sum(nil))
}

// Dial connects. Calls on the connection fail after a minute, so that a test cannot hang.
func Dial(path string) (*net.UnixConn, error) {
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		return nil, err
	}
	return c, c.SetDeadline(time.Now().Add(time.Minute))
}

// Say sends a message.
func Say(c *net.UnixConn, m Message) error {
	b, err := json.Marshal(m)
	if err == nil {
		_, err = c.Write(b)
	}
	return err
}

// Hear receives a message, and the descriptor that came with it, or nil.
func Hear(c *net.UnixConn) (m Message, file *os.File, err error) {
	// A packet is received whole or cut, and messages are far shorter.
	said, rights := make([]byte, 4096), make([]byte, unix.CmsgSpace(4))
	n, rn, _, _, err := c.ReadMsgUnix(said, rights)
	if err != nil {
		return m, nil, err
	}
	if rn > 0 {
		messages, err := unix.ParseSocketControlMessage(rights[:rn])
		if err != nil || len(messages) != 1 {
			return m, nil, fmt.Errorf("%d control messages: %w", len(messages), err)
		}
		fds, err := unix.ParseUnixRights(&messages[0])
		if err != nil || len(fds) != 1 {
			return m, nil, fmt.Errorf("%d descriptors: %w", len(fds), err)
		}
		file = os.NewFile(uintptr(fds[0]), "ring")
	}
	return m, file, json.Unmarshal(said[:n], &m)
}

// Visit connects as a caller with a key, and takes a ring. It returns an error if the
// server does not know the key. A server that refuses is no error: see Guest.Refused.
func Visit(path, caller string, key []byte) (g *Guest, err error) {
	c, err := Dial(path)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = c.Close()
		}
	}()
	// The handshake: greeting, the server's proof, the client's proof, the ring.
	if err := Say(c, Message{Version: 2, Caller: caller, Nonce: nonce}); err != nil {
		return nil, err
	}
	shown, _, err := Hear(c)
	if err != nil {
		return nil, err
	}
	if shown.Error != "" {
		return &Guest{Conn: c, Refused: shown.Error}, nil
	}
	// The client checks the server first. Its own proof would help an impostor.
	if shown.Proof != Proof(key, "server", nonce, shown.Nonce) {
		return nil, errors.New("the server does not know the key")
	}
	if err := Say(c, Message{Proof: Proof(key, "client", nonce, shown.Nonce)}); err != nil {
		return nil, err
	}
	given, file, err := Hear(c)
	if err != nil {
		return nil, err
	}
	return &Guest{Conn: c, Ring: given.Ring, Bytes: given.Bytes, File: file, Refused: given.Error},
		c.SetDeadline(time.Time{})
}

// Close closes the socket and the descriptor. Mappings remain.
func (g *Guest) Close() {
	_ = g.Conn.Close()
	if g.File != nil {
		_ = g.File.Close()
	}
}

// Map takes a ring as the caller "", and maps it for reading until the test ends.
func Map(t testing.TB, path string, key []byte) (ring string, memory []byte) {
	t.Helper()
	g, err := Visit(path, "", key)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Close)
	if g.Ring == "" {
		t.Fatal(g.Refused)
	}
	// The client may not write: the server owns the ring.
	memory, err = unix.Mmap(int(g.File.Fd()), 0, int(g.Bytes), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(memory) })
	return g.Ring, memory
}
