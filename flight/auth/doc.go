// Package auth lets callers in: TLS with certificates that are exchanged while
// the server runs, and who calls, by token, OpenID Connect or client
// certificate.
//
// An Authenticator finds out the caller's Identity. What a caller may do then is for
// others to say; they find the Identity in the call's context. The transport,
// its limits and its calls are package flight's.
//
//	tls.go          certificates, reloaded; handshakes, a bounded number at once
//	certificate.go  the names in a client's certificate
//	credentials.go  what a call carries: headers, and the payload of a handshake
//	tokens.go       the tokens that are known; tokenfile.go how they are made and kept
//	oidc.go         tokens that another service signs
//	sessions.go     calls that outlive what let them in
//	wrong.go        who sends wrong credentials again and again
//	watch.go        files that are read again when they change
//
// No error and no line of the log holds a secret: of a token its ID at most.
package auth
