package object

import (
	"context"
	"errors"
	"sync"
	"time"
)

// errNoneFound says that nothing on the machine names credentials.
var errNoneFound = errors.New("no credentials were found")

// tokens are access tokens of a caller, which a cloud's own library finds and renews.
type tokens struct {
	fixed     string // given by hand
	anonymous bool
	// find looks for credentials: how to get a token, which the library keeps for as long as it holds. It is called
	// with the first request, as it may ask the network.
	find func(ctx context.Context) (func(context.Context) (string, error), error)

	mu      sync.Mutex
	source  func(context.Context) (string, error)
	none    bool
	nextTry time.Time // when they are looked for again
}

// get returns a token, or "" where requests are not signed.
func (t *tokens) get(ctx context.Context) (string, error) {
	if t.fixed != "" || t.anonymous {
		return t.fixed, nil
	}
	source, err := t.found(ctx)
	if err != nil || source == nil {
		return "", err
	}
	token, err := source(ctx)
	if errors.Is(err, errNoneFound) {
		// Nothing is configured, and the machine has no identity: a public bucket can be read all the same.
		t.mu.Lock()
		t.none, t.nextTry = true, time.Now().Add(refreshAhead)
		t.mu.Unlock()
		return "", nil
	}
	return token, err
}

func (t *tokens) found(ctx context.Context) (func(context.Context) (string, error), error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.none && time.Now().Before(t.nextTry) {
		return nil, nil
	}
	if t.source != nil {
		return t.source, nil
	}
	source, err := t.find(ctx)
	switch {
	case errors.Is(err, errNoneFound):
		t.none, t.nextTry = true, time.Now().Add(refreshAhead)
		return nil, nil
	case err != nil:
		return nil, err
	}
	t.source, t.none = source, false
	return source, nil
}

// hint says what is known of why a request was denied.
func (t *tokens) hint() string {
	if t.anonymous {
		return "the request was not signed, as " + setAnonymous + "=true wants"
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.none {
		return "no credentials were found, so the request was not signed"
	}
	return ""
}
