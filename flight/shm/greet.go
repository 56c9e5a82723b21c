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

// Both ends of the socket prove that they know a key before memory is shared. The server gives a caller his key by
// Flight (Server.Key), where each knows the other by certificates and tokens. So a program that has taken the socket's
// place cannot share memory of its own with the server's clients, and a caller gets rings as himself alone. Two nonces
// keep a proof from being used again. A program that passes on what both ends say is found out by the client: the kernel
// tells it (SO_PEERCRED) whose program it talks to, and the server tells it by Flight who that has to be.

const (
	// greetWithin is how long a client may take to prove who it is.
	greetWithin = 10 * time.Second
	// maxGreeted is how many clients of one user may be about to: each takes a descriptor.
	maxGreeted = 128
	nonceBytes = 16
)

// Who proves something.
const (
	serverProves = "server"
	clientProves = "client"
)

// hello is what a client says first.
type hello struct {
	Version int `json:"version"`
	// Caller is who calls, as the server has named him by Flight.
	Caller string `json:"caller"`
	Nonce  string `json:"nonce"`
}

// proof is what the server answers, or why there will be no ring. A client that is convinced sends one, too.
type proof struct {
	Version int    `json:"version,omitempty"`
	Server  string `json:"server,omitempty"`
	Nonce   string `json:"nonce,omitempty"`
	Proof   string `json:"proof,omitempty"`
	Error   string `json:"error,omitempty"`
}

// ringGiven is what the server says last, with the ring's file beside it.
type ringGiven struct {
	Ring  string `json:"ring,omitempty"`
	Bytes int64  `json:"bytes,omitempty"`
	// Error says why there is no ring.
	Error string `json:"error,omitempty"`
}

// Key is what a caller and this server know each other by at the socket. Only he may learn it.
func (s *Server) Key(caller string) []byte {
	h := hmac.New(sha256.New, s.secret[:])
	h.Write([]byte(caller))
	return h.Sum(nil)
}

// proofOf shows that one end knows a key, for the nonces of this connection.
func proofOf(key []byte, whose, ofClient, ofServer string) string {
	h := hmac.New(sha256.New, key)
	_, _ = fmt.Fprintf(h, "bowstring shm %d %s %s %s", Version, whose, ofClient, ofServer)
	return hex.EncodeToString(h.Sum(nil))
}

// beginGreeting counts a client in that is to prove who it is; false if its user has too many such.
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

// greet proves to a client that this is the server, and returns who the client has proved to be and its user.
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
		_ = tell(c, proof{Version: Version, Server: s.name, Error: err.Error()}, nil)
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
	err = tell(c, proof{Version: Version, Server: s.name, Nonce: nonce,
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

// give makes a ring for a caller and hands it over.
func (s *Server) give(c *net.UnixConn, caller string, uid uint32) (*Ring, error) {
	r, err := s.newRing(caller, uid, c)
	_ = c.SetWriteDeadline(time.Now().Add(greetWithin))
	if err != nil {
		_ = tell(c, ringGiven{Error: err.Error()}, nil)
		return nil, err
	}
	if err := tell(c, ringGiven{Ring: r.id, Bytes: r.size}, unix.UnixRights(int(r.memory.give.Fd()))); err != nil {
		s.forget(r)
		return nil, fmt.Errorf("handing shared memory over: %w", err)
	}
	r.memory.given()
	return r, nil
}

// hear reads a message of a client.
func hear(c *net.UnixConn, into any) error {
	buf := make([]byte, record*maxRecords)
	n, err := c.Read(buf)
	if err != nil {
		return fmt.Errorf("a client has not said who it is: %w", err)
	}
	if err := json.Unmarshal(buf[:n], into); err != nil {
		return fmt.Errorf("%w: a client says what is no JSON object: %w", schema.ErrInvalid, err)
	}
	return nil
}

// tell sends a message to a client, with what goes beside it.
func tell(c *net.UnixConn, said any, rights []byte) error {
	b, err := json.Marshal(said)
	if err != nil {
		return err
	}
	_, _, err = c.WriteMsgUnix(b, rights, nil)
	return err
}

// newName is an identifier, or a nonce, that cannot be guessed.
func newName() string {
	var b [nonceBytes]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}
