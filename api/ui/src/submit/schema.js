// Reads a model's JSON Schema as far as a form needs it: which field each part becomes.

const DEPTH = 4;

/** Return the schema that a `$ref`, an optional value or a union stands for, with the description of the outer one. */
export function resolve(schema, root) {
  let found = schema;
  for (let step = 0; step < 10; step += 1) {
    const inner = found.$ref ? pointed(found.$ref, root) : united(found, root);
    if (!inner) return found;
    const { $ref, anyOf, oneOf, allOf, ...own } = found;
    found = { ...inner, ...own };
  }
  return found;
}

function pointed(reference, root) {
  return reference.replace(/^#\//, "").split("/").reduce((value, name) => value?.[name.replaceAll("~1", "/").replaceAll("~0", "~")], root);
}

/**
 * Return the one schema that a form shows for a union: `anyOf: [X, null]` is an optional X; X or a list of X is a list
 * with `one`, whose only item stands alone; of several forms a file is preferred; several forms of text are a text.
 */
function united(schema, root) {
  const choices = (schema.anyOf ?? schema.oneOf ?? schema.allOf)?.filter((each) => each.type !== "null" && !each.required && !each.not);
  if (!choices?.length) return null;
  if (choices.length === 1) return choices[0];
  const forms = choices.map((each) => resolve(each, root));
  const lists = forms.filter(({ items }) => items);
  const [single] = forms.filter(({ items }) => !items);
  if (forms.length === 2 && lists.length === 1 && kindOf(single) === kindOf(resolve(lists[0].items, root))) return { ...lists[0], one: true };
  return forms.find(({ format }) => format === "media") ?? (forms.every(({ type }) => type === "string") ? { type: "string" } : null);
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
  if (type === "array" && schema.items?.format === "media") return "media";
  if (type === "array" && schema.items && depth < DEPTH) return options(schema.items) && !schema.one ? "choices" : "list";
  return "json";
}

/** Return the values that a schema allows; undefined for one that names none. */
export function options(schema) {
  return schema.enum ?? (schema.const === undefined ? undefined : [schema.const]);
}

/**
 * Return the names of the members that a form shows first: required ones, and of alternatives the files and texts of people, or
 * the first where no alternative is a file or a text; with each those that it requires.
 */
export function leading(schema, root) {
  const ways = [...(schema.anyOf ?? []), ...(schema.oneOf ?? [])].flatMap(({ required }) => required ?? []);
  const plain = ways.filter((name) => {
    const { items, ...found } = resolve(schema.properties[name] ?? {}, root);
    const inner = items && resolve(items, root);
    return !found["x-tensors"] && !found["x-links"] && ["media", "text"].includes(kindOf(inner ?? found));
  });
  const first = [...(schema.required ?? []), ...(plain.length ? plain : ways.slice(0, 1))];
  return new Set(first.flatMap((name) => [name, ...(schema.dependentRequired?.[name] ?? [])]));
}

/** Return words for the limits of a value. */
export function limits(schema) {
  const low = schema.minimum ?? schema.exclusiveMinimum;
  const high = schema.maximum ?? schema.exclusiveMaximum;
  const range = low !== undefined && high !== undefined ? `${low} to ${high}` : low !== undefined ? `${low} or more` : high !== undefined ? `${high} or less` : "";
  const fallback = schema.default === undefined || schema.default === null ? "" : `default ${JSON.stringify(schema.default)}`;
  return [range, fallback].filter(Boolean).join(", ");
}
