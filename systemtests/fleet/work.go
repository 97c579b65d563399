package fleet

import (
	"fmt"
	"strings"
)

// Work is what tests read of a ManifestWork.
type Work struct {
	Metadata struct {
		Name, Namespace, ResourceVersion string
		Generation                       int64
		DeletionTimestamp                string
		Labels, Annotations              map[string]string
	}
	Spec struct {
		Workload        struct{ Manifests []Object }
		ManifestConfigs []struct {
			ResourceIdentifier struct{ Resource, Namespace, Name string }
			UpdateStrategy     struct{ Type string }
		}
	}
	Status struct {
		Conditions     []Condition
		ResourceStatus struct{ Manifests []Manifest }
	}
}

// Manifest is what a work agent says of one.
type Manifest struct {
	ResourceMeta   struct{ Kind, Namespace, Name string }
	Conditions     []Condition
	StatusFeedback struct{ Values []Value }
}

// Value is one of the scalars that were asked for.
type Value struct {
	Name       string
	FieldValue struct {
		String  *string
		Integer *int64
	}
}

// Object is any object's content.
type Object = map[string]any

// String is what the agent says of the work as it is: each manifest's name, whether it is there, and what was asked of it.
func (w *Work) String() string {
	for _, kind := range []string{"Applied", "Available"} {
		if c := Find(w.Status.Conditions, kind); c.ObservedGeneration != w.Metadata.Generation {
			return "nothing of this generation"
		}
	}
	var all []string
	for _, m := range w.Status.ResourceStatus.Manifests {
		all = append(all, m.String())
	}
	return strings.Join(all, ", ")
}

func (m *Manifest) String() string {
	if c := Find(m.Conditions, "Applied"); c.Status != "True" {
		return m.ResourceMeta.Name + " " + c.Message
	}
	if c := Find(m.Conditions, "Available"); c.Status != "True" {
		return m.ResourceMeta.Name + " not there"
	}
	var values []string
	for _, v := range m.StatusFeedback.Values {
		if v.FieldValue.String != nil {
			values = append(values, v.Name+"="+*v.FieldValue.String)
		}
		if v.FieldValue.Integer != nil {
			values = append(values, fmt.Sprintf("%s=%d", v.Name, *v.FieldValue.Integer))
		}
	}
	return fmt.Sprintf("%s there (%s)", m.ResourceMeta.Name, strings.Join(values, " "))
}
