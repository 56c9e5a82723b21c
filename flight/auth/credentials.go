package auth

import (
	"encoding/base64"
	"errors"
	"strings"

	"github.com/apache/arrow/go/v17/arrow/flight"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
)

const (
	// authorizationHeader is where clients send a token, or in a handshake a name
	// and a token as its password.
	authorizationHeader = "authorization"
	// tokenHeader is where pyarrow's older ClientAuthHandler sends what a handshake
	// gave it.
	tokenHeader = "auth-token-bin"
	// maxCredential bounds what a client sends. Tokens of OpenID Connect have some
	// kilobytes.
	maxCredential = 16 << 10
	// anyUser is the name by which any token's owner may log in.
	anyUser = "token"
)

// Why credentials are wrong. None of these reaches a client.
var (
	errNone     = errors.New("no credentials")
	errTwice    = errors.New("credentials came twice")
	errLong     = errors.New("credentials are too long")
	errEmpty    = errors.New("the token is empty")
	errScheme   = errors.New("the authorization is neither Bearer nor, in a handshake, Basic")
	errEncoding = errors.New("the authorization is not well formed")
	errUser     = errors.New("the name is not that of the token's principal")
)

// credential is what a client sent.
type credential struct {
	token string
	user  string // with which the token came, in a handshake; "" otherwise
}

// fromHeaders finds the credential in a call's headers. errNone if there is
// none.
func fromHeaders(md metadata.MD, handshake bool) (credential, error) {
	auth, older := md.Get(authorizationHeader), md.Get(tokenHeader)
	switch {
	case len(auth)+len(older) == 0:
		return credential{}, errNone
	case len(auth)+len(older) > 1:
		return credential{}, errTwice
	case len(older) == 1:
		return bearer(older[0])
	}
	if len(auth[0]) > maxCredential {
		return credential{}, errLong
	}
	scheme, value, _ := strings.Cut(auth[0], " ")
	switch {
	case strings.EqualFold(scheme, "bearer"):
		return bearer(strings.Trim(value, " "))
	case handshake && strings.EqualFold(scheme, "basic"):
		return basic(strings.Trim(value, " "))
	}
	return credential{}, errScheme
}

func bearer(token string) (credential, error) {
	switch {
	case token == "":
		return credential{}, errEmpty
	case len(token) > maxCredential:
		return credential{}, errLong
	}
	return credential{token: token}, nil
}

// basic decodes a name and a password, which is a token. Some clients pad
// base64 (pyarrow), some don't (ADBC).
func basic(value string) (credential, error) {
	b, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(value, "="))
	if err != nil {
		return credential{}, errEncoding
	}
	user, token, ok := strings.Cut(string(b), ":")
	if !ok {
		return credential{}, errEncoding
	}
	return withUser(user, token)
}

// fromPayload decodes what pyarrow's older ClientAuthHandler sends.
func fromPayload(payload []byte) (credential, error) {
	if len(payload) > maxCredential {
		return credential{}, errLong
	}
	var auth flight.BasicAuth
	if err := proto.Unmarshal(payload, &auth); err != nil {
		return credential{}, errEncoding
	}
	return withUser(auth.GetUsername(), auth.GetPassword())
}

func withUser(user, token string) (credential, error) {
	c, err := bearer(token)
	if user != anyUser {
		c.user = user
	}
	return c, err
}
