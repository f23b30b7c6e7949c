// Reads a model's JSON Schema as far as a form needs it: which field each part becomes.

const DEPTH = 4;

/** Return the schema that a `$ref` or an optional value stands for, with the description of the outer one. */
export function resolve(schema, root) {
  let found = schema;
  for (let step = 0; step < 10; step += 1) {
    const inner = found.$ref ? pointed(found.$ref, root) : only(found);
    if (!inner) return found;
    const { $ref, anyOf, oneOf, allOf, ...own } = found;
    found = { ...inner, ...own };
  }
  return found;
}

function pointed(reference, root) {
  return reference.replace(/^#\//, "").split("/").reduce((value, name) => value?.[name.replaceAll("~1", "/").replaceAll("~0", "~")], root);
}

/** Return the one alternative beside null, if there is one: `anyOf: [X, null]` is an optional X. */
function only(schema) {
  const choices = (schema.anyOf ?? schema.oneOf ?? schema.allOf)?.filter((each) => each.type !== "null" && !each.required);
  return choices?.length === 1 ? choices[0] : null;
}

/** Return the kind of field for a resolved schema: media, choice, choices, switch, number, text, group, list or json. */
export function kindOf(schema, depth = 0) {
  if (schema.const !== undefined) return "const";
  if (schema.enum) return "choice";
  const type = Array.isArray(schema.type) ? schema.type.find((each) => each !== "null") : schema.type;
  if (type === "string") return schema.format === "media" ? "media" : "text";
  if (type === "boolean") return "switch";
  if (type === "integer" || type === "number") return "number";
  if (type === "object" && schema.properties && depth < DEPTH) return "group";
  if (type === "array" && schema.items && depth < DEPTH) return schema.items.enum ? "choices" : "list";
  return "json";
}

/** Return words for the limits of a value. */
export function limits(schema) {
  const low = schema.minimum ?? schema.exclusiveMinimum;
  const high = schema.maximum ?? schema.exclusiveMaximum;
  const range = low !== undefined && high !== undefined ? `${low} to ${high}` : low !== undefined ? `${low} or more` : high !== undefined ? `${high} or less` : "";
  const fallback = schema.default === undefined || schema.default === null ? "" : `default ${JSON.stringify(schema.default)}`;
  return [range, fallback].filter(Boolean).join(", ");
}
