package shm

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"bowstring/schema"
)

// Both ends of the socket prove that they know a key before memory is shared. The server
// sends a caller its key by Flight (Server.Key), where TLS and tokens authenticate both.
// Therefore a program that has replaced the socket cannot share its own memory with the
// server's clients, and a caller gets rings under its own name only. The two nonces
// prevent a replay. A program that relays between both ends is detected by the client:
// the kernel reports which user the program at the other end belongs to (SO_PEERCRED),
// and the server has announced its own user by Flight.

const (
	// greetWithin bounds the handshake, so that a silent client frees its descriptor
	// soon.
	greetWithin = 10 * time.Second
	// maxGreeted bounds the clients of one user in the handshake: each takes a descriptor
	// of the server.
	maxGreeted = 128
	nonceBytes = 16
)

// The end that a proof belongs to. It is in the proof, so that neither end can return the
// other's.
const (
	serverProves = "server"
	clientProves = "client"
)

// hello is the first message of a client.
type hello struct {
	Version int `json:"version"`
	// Caller is the principal, as the server has named it by Flight.
	Caller string `json:"caller"`
	Nonce  string `json:"nonce"`
}

// proof is the server's answer, or the reason for which there will be no ring. The client
// then sends one, too.
type proof struct {
	Version int    `json:"version,omitempty"`
	Server  string `json:"server,omitempty"`
	Nonce   string `json:"nonce,omitempty"`
	Proof   string `json:"proof,omitempty"`
	Error   string `json:"error,omitempty"`
}

// ringGiven is the last message of the handshake. The ring's descriptor comes with it.
type ringGiven struct {
	Ring  string `json:"ring,omitempty"`
	Bytes int64  `json:"bytes,omitempty"`
	// Error says why there is no ring.
	Error string `json:"error,omitempty"`
}

// Key returns the key that authenticates a caller and this server to each other at the
// socket. Package flight sends it to that caller only. It is an HMAC of a secret of the
// process, so that the server stores no keys.
func (s *Server) Key(caller string) []byte {
	h := hmac.New(sha256.New, s.secret[:])
	h.Write([]byte(caller))
	return h.Sum(nil)
}

// proofOf returns an HMAC over both nonces of a connection, which only a holder of the
// key can make. Version is part of it: neither end can be talked into another version.
func proofOf(key []byte, whose, ofClient, ofServer string) string {
	h := hmac.New(sha256.New, key)
	_, _ = fmt.Fprintf(h, "bowstring shm %d %s %s %s", Version, whose, ofClient, ofServer)
	return hex.EncodeToString(h.Sum(nil))
}

// beginGreeting counts a client that begins the handshake. It returns false if its user
// has maxGreeted of them.
func (s *Server) beginGreeting(uid uint32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.greeted[uid] >= maxGreeted {
		s.gone.Refused++
		return false
	}
	s.greeted[uid]++
	return true
}

func (s *Server) endGreeting(uid uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.greeted[uid]--; s.greeted[uid] == 0 {
		delete(s.greeted, uid)
	}
}

// greet runs the handshake. It returns the authenticated caller and the user of its
// program. The server proves its identity first: a client gives no proof to a program
// that has replaced the socket. If the client's proof is wrong, the connection ends
// without an answer: a reason would only help a guesser.
func (s *Server) greet(c *net.UnixConn) (caller string, uid uint32, err error) {
	uid, err = userOf(c)
	if err != nil {
		return "", 0, err
	}
	if !s.beginGreeting(uid) {
		return "", uid, fmt.Errorf("%w: %d clients of user %d are greeted already", schema.ErrLimit, maxGreeted, uid)
	}
	defer s.endGreeting(uid)
	_ = c.SetDeadline(time.Now().Add(greetWithin))
	var asks hello
	if err := hear(c, &asks); err != nil {
		return "", uid, err
	}
	refuse := func(err error) (string, uint32, error) {
		_ = send(c, proof{Version: Version, Server: s.name, Error: err.Error()}, nil)
		return "", uid, err
	}
	if len(s.opts.UIDs) > 0 && !slices.Contains(s.opts.UIDs, uid) {
		return refuse(fmt.Errorf("%w: user %d may not have memory shared by this server", schema.ErrDenied, uid))
	}
	if nonce, err := hex.DecodeString(asks.Nonce); asks.Version != Version || err != nil || len(nonce) != nonceBytes {
		return refuse(fmt.Errorf("%w: a client says version %d and a nonce of %d characters; want %d and %d",
			schema.ErrInvalid, asks.Version, len(asks.Nonce), Version, 2*nonceBytes))
	}
	key, nonce := s.Key(asks.Caller), newName()
	err = send(c, proof{Version: Version, Server: s.name, Nonce: nonce,
		Proof: proofOf(key, serverProves, asks.Nonce, nonce)}, nil)
	if err != nil {
		return "", uid, err
	}
	var shown proof
	if err := hear(c, &shown); err != nil {
		return "", uid, err
	}
	if !hmac.Equal([]byte(shown.Proof), []byte(proofOf(key, clientProves, asks.Nonce, nonce))) {
		return "", uid, fmt.Errorf("%w: a program of user %d does not know the key of caller %s", schema.ErrDenied, uid,
			schema.Quote(asks.Caller))
	}
	return asks.Caller, uid, nil
}

// give makes a ring for a caller and sends its descriptor. If there is no room, the
// client gets the reason and is served by TCP.
func (s *Server) give(c *net.UnixConn, caller string, uid uint32) (*Ring, error) {
	r, err := s.newRing(caller, uid, c)
	_ = c.SetWriteDeadline(time.Now().Add(greetWithin))
	if err != nil {
		_ = send(c, ringGiven{Error: err.Error()}, nil)
		return nil, err
	}
	if err := send(c, ringGiven{Ring: r.id, Bytes: r.size}, unix.UnixRights(int(r.memory.give.Fd()))); err != nil {
		s.forget(r)
		return nil, fmt.Errorf("handing shared memory over: %w", err)
	}
	r.memory.given()
	return r, nil
}

// hear reads one message. The socket is of type unixpacket, so one read is one message.
func hear(c *net.UnixConn, into any) error {
	buf := make([]byte, record*maxRecords)
	n, err := c.Read(buf)
	if err != nil {
		return fmt.Errorf("a client has not authenticated: %w", err)
	}
	if err := json.Unmarshal(buf[:n], into); err != nil {
		return fmt.Errorf("%w: a client has sent something other than a JSON object: %w", schema.ErrInvalid, err)
	}
	return nil
}

// send sends one message. rights are the descriptors that go with it, encoded, or nil.
func send(c *net.UnixConn, said any, rights []byte) error {
	b, err := json.Marshal(said)
	if err != nil {
		return err
	}
	_, _, err = c.WriteMsgUnix(b, rights, nil)
	return err
}

// newName returns 128 random bits in hexadecimal: the name of a server or a ring, or a
// nonce.
func newName() string {
	var b [nonceBytes]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}
