package cql

import (
	"fmt"
	"os"
	"strings"

	"bowstring/schema"
)

// Environment variables that hold the credentials. Those in the environment
// are used where the address names none.
const (
	EnvUser         = "BOWSTRING_CQL_USER"
	EnvPassword     = "BOWSTRING_CQL_PASSWORD"
	EnvPasswordFile = "BOWSTRING_CQL_PASSWORD_FILE"
)

// credentials finds the user and the password, which it keeps out of c: a
// Config may be printed.
func (c *Config) credentials() (user, password string, err error) {
	user = c.User
	if user == "" {
		user = os.Getenv(EnvUser)
	}
	file := c.PasswordFile
	fromEnv := os.Getenv(EnvPassword)
	if file == "" {
		file = os.Getenv(EnvPasswordFile)
		if file != "" && fromEnv != "" {
			return "", "", bad(EnvPassword, "set together with "+EnvPasswordFile, "one of the two")
		}
	}
	if file == "" {
		password = fromEnv
	} else {
		data, err := os.ReadFile(file)
		if err != nil {
			return "", "", fmt.Errorf("%w: password file: %w", schema.ErrInvalid, err)
		}
		password, _, _ = strings.Cut(string(data), "\n")
		password = strings.TrimSuffix(password, "\r")
		if password == "" {
			return "", "", fmt.Errorf("%w: password file %s: its first line is empty", schema.ErrInvalid, file)
		}
	}
	switch {
	case user == "" && password != "":
		return "", "", bad("user", "a password without a user", "the parameter user, or "+EnvUser)
	case user != "" && password == "":
		return "", "", bad("password_file", "user "+quoted(user)+" without a password", "password_file, "+EnvPassword+
			" or "+EnvPasswordFile)
	}
	return user, password, nil
}
