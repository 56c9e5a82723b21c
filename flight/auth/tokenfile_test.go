package auth

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"bowstring/schema"
)

// A file of tokens that is changed stays its owner's, in its group, with its mode: the server can read it, whichever
// user changes it.
func TestTokenFileStaysItsOwners(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens.json")
	first := &Token{Principal: "ada"}
	if _, err := AddToken(path, first); err != nil {
		t.Fatal(err)
	}
	uid, gid := os.Getuid(), os.Getgid()
	if uid == 0 {
		uid, gid = 4711, 4712
		if err := os.Chown(path, uid, gid); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func() error{
		"create": func() error { _, err := AddToken(path, &Token{Principal: "bob"}); return err },
		"revoke": func() error { _, err := RevokeToken(path, first.ID); return err },
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		owner := ownerOf(info)
		if int(owner.Uid) != uid || int(owner.Gid) != gid || info.Mode().Perm() != 0o640 {
			t.Errorf("after %s it is of %d:%d, %v; want %d:%d, 0640", name, owner.Uid, owner.Gid, info.Mode(), uid,
				gid)
		}
	}
	if list, err := ReadTokens(path); err != nil || len(list) != 2 {
		t.Errorf("%d tokens, %v", len(list), err)
	}
	if others, err := os.ReadDir(filepath.Dir(path)); err != nil || len(others) != 1 {
		t.Errorf("beside the file there is %v, %v", others, err)
	}
}

// A link of one's own is followed, and stays. One of another user is not: it could lead to any file.
func TestTokenFileByLink(t *testing.T) {
	dir := t.TempDir()
	path, link := filepath.Join(dir, "tokens.json"), filepath.Join(dir, "link")
	if _, err := AddToken(path, &Token{Principal: "ada"}); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("tokens.json", link); err != nil {
		t.Fatal(err)
	}
	if _, err := AddToken(link, &Token{Principal: "bob"}); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Lstat(link); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link was replaced: %v", err)
	}
	if list, err := ReadTokens(path); err != nil || len(list) != 2 {
		t.Errorf("%d tokens, %v", len(list), err)
	}
	round := filepath.Join(dir, "round")
	if err := os.Symlink("round", round); err != nil {
		t.Fatal(err)
	}
	if _, err := AddToken(round, &Token{Principal: "bob"}); !errors.Is(err, schema.ErrInvalid) {
		t.Errorf("a link to itself: %v", err)
	}
	if os.Getuid() != 0 {
		t.Skip("links of another user are made by root")
	}
	if err := os.Lchown(link, 4711, 4712); err != nil {
		t.Fatal(err)
	}
	if _, err := AddToken(link, &Token{Principal: "eve"}); !errors.Is(err, schema.ErrInvalid) {
		t.Errorf("a link of another user: %v", err)
	}
	if list, err := ReadTokens(path); err != nil || len(list) != 2 {
		t.Errorf("by a link of another user there are %d tokens, %v", len(list), err)
	}
}
