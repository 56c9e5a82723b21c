package door

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"

	"bowstring/schema"
)

// keepEnded is how long a token that is over stays in the file, for `token list`.
const keepEnded = 90 * 24 * time.Hour

// ReadTokens returns the tokens of a file. One that is not there is
// fs.ErrNotExist.
func ReadTokens(path string) ([]Token, error) {
	b, err := ReadFile(path, maxFile)
	if err != nil {
		return nil, err
	}
	list, err := parseTokens(b)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", schema.ErrInvalid, path, err)
	}
	return list, nil
}

// AddToken makes a token for the principal, groups, tenants and expiry of t,
// fills in the rest, and adds it to a file, which is made if there is none. What
// it returns is the token itself, which is kept nowhere.
func AddToken(path string, t *Token) (token string, err error) {
	err = changeTokens(path, true, func(list []Token) ([]Token, error) {
		now := time.Now()
		if token, err = NewToken(t, now); err != nil {
			return nil, fmt.Errorf("%w: %w", schema.ErrInvalid, err)
		}
		list = slices.DeleteFunc(list, func(old Token) bool {
			past := now.Add(-keepEnded)
			return !old.Revoked.IsZero() && old.Revoked.Before(past) || !old.Expires.IsZero() &&
				old.Expires.Before(past)
		})
		return append(list, *t), nil
	})
	if err != nil {
		return "", err
	}
	return token, nil
}

// RevokeToken ends a token of a file, and returns it. One that was revoked
// before stays as it is.
func RevokeToken(path, id string) (Token, error) {
	var found Token
	return found, changeTokens(path, false, func(list []Token) ([]Token, error) {
		at := slices.IndexFunc(list, func(t Token) bool { return t.ID == id })
		if at < 0 {
			// Whoever pastes the whole token shall not see it again in an error.
			return nil, fmt.Errorf("%w: no token of that ID is in %s; `bowstring token list` shows those there are",
				schema.ErrNotFound, path)
		}
		if list[at].Revoked.IsZero() {
			list[at].Revoked = time.Now().UTC().Truncate(time.Second)
		}
		found = list[at]
		return list, nil
	})
}

// changeTokens replaces a file, from one moment to the next, by what change makes
// of it. One process at a time does so.
func changeTokens(path string, create bool, change func([]Token) ([]Token, error)) (err error) {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real // the file is replaced, not the link to it
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }() // which gives up the lock
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("locking %s: %w", dir.Name(), err)
	}
	list, err := ReadTokens(path)
	if err != nil && (!create || !errors.Is(err, fs.ErrNotExist)) {
		return err
	}
	if list, err = change(list); err != nil {
		return err
	}
	b, err := json.MarshalIndent(tokenFile{tokenFileVersion, list}, "", "  ")
	if err != nil {
		return err
	}
	return renameio.WriteFile(path, append(b, '\n'), 0o600, renameio.IgnoreUmask())
}
