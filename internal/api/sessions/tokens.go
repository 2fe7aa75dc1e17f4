package sessions

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"net/http"
	"strings"

	"sandboxd"
)

// keeper knows the secrets. The token of a session is not kept but derived, from a
// secret of the host and the life of the session: whoever attaches is given the same
// one again, it outlasts a restart, and what lies on the disk of sessions opens none.
type keeper struct {
	service    [sha256.Size]byte
	hasService bool
	key        []byte
}

func newKeeper(token string, key []byte) keeper {
	return keeper{service: sha256.Sum256([]byte(token)), hasService: token != "", key: key}
}

// token is that of one life of a session: 43 characters of the URL's alphabet.
func (k keeper) token(life string) string {
	mac := hmac.New(sha256.New, k.key)
	mac.Write([]byte("sandboxd session token\x00" + life))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// isService and opens compare by hashes, in constant time.
func (k keeper) isService(secret string) bool {
	sum := sha256.Sum256([]byte(secret))
	return subtle.ConstantTimeCompare(sum[:], k.service[:]) == 1 && k.hasService
}

func (k keeper) opens(secret, life string) bool {
	got, want := sha256.Sum256([]byte(secret)), sha256.Sum256([]byte(k.token(life)))
	return subtle.ConstantTimeCompare(got[:], want[:]) == 1
}

// secretOf is what a request shows, in the wire's header or in the usual one.
func secretOf(r *http.Request) string {
	if secret := r.Header.Get("X-Sandbox-Token"); secret != "" {
		return secret
	}
	if scheme, rest, ok := strings.Cut(r.Header.Get("Authorization"), " "); ok && strings.EqualFold(scheme, "Bearer") {
		return strings.TrimSpace(rest)
	}
	return ""
}

// stranger says whether a request shows no secret that opens anything at its path.
func (f *Face) stranger(c *call) bool {
	secret := secretOf(c.r)
	if f.auth.isService(secret) {
		return false
	}
	if c.id == "" || secret == "" {
		return true
	}
	rec, err := f.cfg.Sessions.GetSession(c.ctx(), c.id)
	return err != nil || !f.auth.opens(secret, rec.Life)
}

// authorize decides who asks, and after that whether the session of the path is open. A
// token of a session that is closed opens nothing, and so does not tell that it is.
func (f *Face) authorize(c *call, need access) error {
	secret := secretOf(c.r)
	c.service = f.auth.isService(secret)
	if need == forService {
		if !c.service {
			return unauthorized()
		}
		return nil
	}
	rec, err := f.cfg.Sessions.GetSession(c.ctx(), c.id)
	open := err == nil
	if err != nil && sandboxd.ClassOf(err) != sandboxd.ClassNotFound {
		return err
	}
	if !c.service && (!open || !f.auth.opens(secret, rec.Life)) {
		return unauthorized()
	}
	if open {
		c.session = rec
	}
	return nil
}
