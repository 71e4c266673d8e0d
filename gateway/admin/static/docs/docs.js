// Swagger UI for this gateway's own OpenAPI document. Nothing is loaded from elsewhere, and nothing is stored: a reload forgets the token.
SwaggerUIBundle({
  url: "/-/openapi.json",
  dom_id: "#api",
  deepLinking: true,
  defaultModelsExpandDepth: 0,
  displayRequestDuration: true,
  docExpansion: "list",
  filter: true,
  persistAuthorization: false,
  syntaxHighlight: { theme: "nord" },
  tryItOutEnabled: true,
  validatorUrl: null,
});
