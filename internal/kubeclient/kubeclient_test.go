package kubeclient

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestExplained(t *testing.T) {
	nodes := schema.GroupResource{Group: "flowkeep.io", Resource: "nodes"}
	for name, c := range map[string]struct {
		err         error
		want        string
		unknownKind bool
	}{
		"unknown kind": {
			apierrors.NewGenericServerResponse(http.StatusNotFound, "get", nodes, "", "404 page not found", 0, true),
			"does not know the kinds: ", true,
		},
		"unknown kind of an object": {
			apierrors.NewGenericServerResponse(http.StatusNotFound, "get", nodes, "node1", "404 page not found", 0, true),
			"does not know the kinds: ", true,
		},
		"no object": {apierrors.NewNotFound(nodes, "node1"), `"node1" not found`, false},
		"no role": {
			apierrors.NewForbidden(nodes, "node1", errors.New(`: User "x" cannot get it`)),
			"(bind the role)", false,
		},
		"no response": {errors.New("connection refused"), "connection refused", false},
	} {
		t.Run(name, func(t *testing.T) {
			got := Explained(c.err, "the kinds", "bind the role")
			if !strings.Contains(got.Error(), c.want) || !errors.Is(got, c.err) || IsUnknownKind(c.err) != c.unknownKind {
				t.Errorf("%v, unknown kind %t; want %q, %t", got, IsUnknownKind(c.err), c.want, c.unknownKind)
			}
		})
	}
	if err := Explained(nil, "the kinds", "bind the role"); err != nil || IsUnknownKind(nil) {
		t.Errorf("without an error: %v", err)
	}
}
