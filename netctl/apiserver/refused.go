package apiserver

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"

	"github.com/flowkeep/flowkeep/api/inspect"
)

// failureOf parses the error of the API server or of netmaster about a request; other servers may have sent anything.
func failureOf(text []byte) inspect.Failure {
	var f inspect.Failure
	if json.Unmarshal(text, &f) == nil && f.Kind == "Status" {
		return f
	}
	const most = 200
	words := strings.Join(strings.Fields(string(text)), " ")
	return inspect.Failure{Message: strings.ToValidUTF8(words[:min(len(words), most)], "")}
}

var forbiddenUser = regexp.MustCompile(`User "([^"]+)"`)

// refused says what to do where the API server did not pass a question on.
func refused(resp *http.Response, f *inspect.Failure) error {
	switch resp.StatusCode {
	case http.StatusUnauthorized:
		return fmt.Errorf("the API server does not know who you are: %s; kubectl auth whoami tells whether your kubeconfig still holds", f.Message)
	case http.StatusForbidden:
		return forbidden(f.Message, resourceOf(resp))
	case http.StatusNotFound:
		return &Unreachable{errors.New("this cluster's API server knows no netmaster: " +
			"netmaster has taken its registration out of service because the API server does not reach it, " +
			"or nothing has registered it (netmaster registration and deploy/roles.yaml do; is it the right " +
			"--context?); " +
			"netctl --server asks netmaster itself")}
	case http.StatusServiceUnavailable:
		return &Unreachable{fmt.Errorf("the API server does not reach netmaster: %s; is it running? kubectl get apiservice %s.%s tells what is wrong; netctl --server asks netmaster itself", f.Message, inspect.APIVersion, inspect.Group)}
	case http.StatusOK:
		return &Unreachable{errors.New("who answers is not netmaster: is something between netctl and the API server?")}
	}
	return &Unreachable{fmt.Errorf("the API server answers %q: %s", resp.Status, f.Message)}
}

// resourceOf returns the kind of query of a request that this client made.
func resourceOf(resp *http.Response) string {
	_, kind, _ := strings.Cut(resp.Request.URL.Path, inspect.Prefix+"/")
	if rest, ok := strings.CutPrefix(kind, "namespaces/"); ok {
		_, kind, _ = strings.Cut(rest, "/")
	}
	kind, _, _ = strings.Cut(kind, "/")
	return kind
}

func forbidden(message, kind string) error {
	name := "NAME"
	if m := forbiddenUser.FindStringSubmatch(message); m != nil {
		name = m[1]
	}
	subject := "--user=" + quote(name)
	if account, ok := strings.CutPrefix(name, "system:serviceaccount:"); ok {
		subject = "--serviceaccount=" + quote(account)
	}
	hint := ""
	if kind == inspect.AskFrontends {
		hint = "\nin a namespace of which you may read the Services: netctl service ls -n NAMESPACE"
	}
	return fmt.Errorf("%s\nan administrator lets you ask: kubectl create clusterrolebinding NAME --clusterrole=%s %s%s",
		strings.TrimSpace(message), inspect.RoleFor(kind), subject, hint)
}

var plainWord = regexp.MustCompile(`^[A-Za-z0-9_.:@/-]+$`)

// quote keeps a name whole in a shell.
func quote(word string) string {
	if plainWord.MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
