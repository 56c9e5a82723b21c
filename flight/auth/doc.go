// Package auth authenticates callers: TLS with certificates that are reloaded while the
// server runs, and the caller's name from a token, OpenID Connect or a client
// certificate.
//
// An [Authenticator] finds the caller's [Identity]. Package policy decides what the
// caller may do; package flight puts the Identity into the call's context. The transport,
// its limits and its calls are package flight's. Begin with [New] and
// [Authenticator.Authenticate].
//
//	auth.go      the Authenticator, calls that outlive their credentials, failed logins
//	by address
//	tls.go       certificates, reloaded; a bounded number of handshakes at once
//	identity.go  the identity, and the credentials of a call: headers, payload of a
//	handshake
//	tokens.go    the file of tokens
//	oidc.go      tokens that an OpenID Connect provider signs
//	sources.go   how long the server goes on if a file or the provider cannot be read
//	file.go      files that are read again when they change
//
// No error and no line of the log contains a secret: of a token its ID at most.
package auth
