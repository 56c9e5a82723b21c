package flight

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v17/arrow/flight"
	"github.com/go-jose/go-jose/v4"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"bowstring/flight/auth"
)

// forged makes a token with a key, its ID, and other headers.
func forged(t *testing.T, algorithm jose.SignatureAlgorithm, key any, id string, with *jose.SignerOptions,
	claims map[string]any) string {
	t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: algorithm, Key: jose.JSONWebKey{Key: key, KeyID: id}},
		with)
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := signer.Sign(b)
	if err != nil {
		t.Fatal(err)
	}
	text, err := signed.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// say writes to the server's port and reads until the server closes the connection.
func (f *fixture) say(hello string) string {
	f.t.Helper()
	c, err := net.Dial("tcp", f.addr)
	if err != nil {
		f.t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte(hello)); err != nil {
		f.t.Fatal(err)
	}
	_ = c.(*net.TCPConn).CloseWrite()
	got, _ := io.ReadAll(c)
	return string(got)
}

func tokenID(token string) string { return strings.Split(token, "_")[1] }

// swapLast changes a token's secret.
func swapLast(token string) string {
	end := "A"
	if strings.HasSuffix(token, end) {
		end = "E"
	}
	return token[:len(token)-1] + end
}

func hashIn(t *testing.T, path, id string) string {
	t.Helper()
	list, err := auth.ReadTokens(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := range list {
		if list[i].ID == id {
			return list[i].Hash
		}
	}
	t.Fatal("no such token")
	return ""
}

func basicPayload(t *testing.T, user, password string) []byte {
	t.Helper()
	b, err := proto.Marshal(&flight.BasicAuth{Username: user, Password: password})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// handshake calls Handshake, with a message if there is a payload.
func handshake(ctx context.Context, c flight.Client, payload []byte) (answer string, headers metadata.MD, err error) {
	stream, err := c.Handshake(ctx)
	if err != nil {
		return "", nil, err
	}
	if payload != nil {
		// A server that has refused the call already does not read. Recv returns the
		// reason.
		if err := stream.Send(&flight.HandshakeRequest{Payload: payload}); err != nil && !errors.Is(err, io.EOF) {
			return "", nil, err
		}
	}
	if err := stream.CloseSend(); err != nil {
		return "", nil, err
	}
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return "", stream.Trailer(), err
		}
		answer = string(m.GetPayload())
	}
	headers, err = stream.Header()
	return answer, metadata.Join(headers, stream.Trailer()), err
}
